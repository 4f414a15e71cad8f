// CUDA C++ as C++ of the host, one block at a time: a test tool, so it says what went wrong.
//
// Threads of a block that meet (barriers, shuffles) are fibres: each runs until it meets, then the
// next one does. They take turns forwards in one launch and backwards in the next, so what is right
// only because one came first is wrong in one of the two. Shared memory starts as NaN.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

namespace host {

const unsigned MOST = 1024;  // threads of a block

#include "fibres.h"

// --- memory: a page that may not be touched lies on both sides ---

static size_t pages(size_t nbytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (nbytes + page - 1) / page * page;
}

// --- launches ---

static sigjmp_buf escape;
static volatile sig_atomic_t inside;
static char said[512];

static void stray(int number) {
  if (!inside) _exit(128 + number);
  snprintf(said, sizeof said, "block %u, thread %u touches memory that is not a buffer's",
           blockIdx.x, threadIdx.x);
  siglongjmp(escape, 1);
}

static void give_up(const char *what) {
  snprintf(said, sizeof said, "block %u: %s", blockIdx.x, what);
  siglongjmp(escape, 1);
}

template <class... A, size_t... I>
static void called(void (*kernel)(A...), void **given, std::index_sequence<I...>) {
  kernel(*(A *)given[I]...);
}

template <class... A>
static const char *launch(void (*kernel)(A...), void **given, unsigned blocks, unsigned threads,
                          bool meet) {
  struct sigaction ours = {}, before[2];
  static char stack[1 << 16];
  stack_t alternate = {}, old;
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, &old);
  ours.sa_handler = stray;
  ours.sa_flags = SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &ours, before);
  sigaction(SIGBUS, &ours, before + 1);
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  said[0] = 0;
  static bool backwards;
  backwards = !backwards;
  if (!sigsetjmp(escape, 1)) {
    inside = 1;
    auto one = [&] { called(kernel, given, std::index_sequence_for<A...>{}); };
    for (unsigned b = 0; b < blocks; ++b) {
      blockIdx = {b, 0, 0};
      if (meet) {
        fibres::block(threads, backwards, one);
      } else {
        for (unsigned t = 0; t < threads; ++t) {
          threadIdx = {t, 0, 0};
          one();
        }
      }
    }
  }
  inside = 0;
  sigaction(SIGSEGV, before, nullptr);
  sigaction(SIGBUS, before + 1, nullptr);
  sigaltstack(&old, nullptr);
  return said;
}

}  // namespace host

#define __syncthreads() host::fibres::barrier()
