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
#include <unistd.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("block_memory")))

struct __align__(16) uint4 { unsigned x, y, z, w; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

struct Dim3 { unsigned x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

namespace host {

const unsigned MOST = 1024;  // threads of a block

static sigjmp_buf escape;
static volatile sig_atomic_t inside;
static char said[512];

static void give_up(const char *what) {
  snprintf(said, sizeof said, "block %u, thread %u: %s", blockIdx.x, threadIdx.x, what);
  siglongjmp(escape, 1);
}

#include "fibres.h"

// What the sanitizer and the pages around every buffer (cuda_host.py) find.
static void stray(int number) {
  if (!inside) _exit(128 + number);
  give_up(number == SIGILL ? "an address is not a multiple of what its type needs"
                           : "memory is touched that is not a buffer's");
}

// Arrays of the block, as the linker gathers them.
extern "C" char __start_block_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_block_memory[] __attribute__((weak, visibility("hidden")));

#include "ptx.h"

template <class... A, size_t... I>
static void called(void (*kernel)(A...), void **given, std::index_sequence<I...>) {
  kernel(*(A *)given[I]...);
}

// The size of an argument, 0 behind the last one.
template <class... A> static int size_of(void (*)(A...), int number) {
  const int sizes[] = {sizeof(A)..., 0};
  return sizes[number];
}

// A kernel, and what it is given.
struct Call {
  void (*once)(const Call &);
  void (*kernel)();
  void **given;
};

static const char *launched(const Call &call, unsigned blocks, unsigned threads, bool meet) {
  static const int caught[] = {SIGSEGV, SIGBUS, SIGILL};
  struct sigaction ours = {}, before[3];
  static char stack[1 << 16];
  stack_t alternate = {}, old;
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, &old);
  ours.sa_handler = stray;
  ours.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 3; ++i) sigaction(caught[i], &ours, before + i);
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  said[0] = 0;
  static bool backwards;
  backwards = !backwards;
  if (!sigsetjmp(escape, 1)) {
    inside = 1;
    for (unsigned b = 0; b < blocks; ++b) {
      blockIdx = {b, 0, 0};
      memset(__start_block_memory, 0xff, __stop_block_memory - __start_block_memory);
      if (meet) {
        ptx::forget_copies();
        fibres::block(threads, backwards, [](void *given) { auto &own = *(const Call *)given; own.once(own); },
                      (void *)&call);
      } else {
        for (unsigned t = 0; t < threads; ++t) {
          threadIdx = {backwards ? threads - 1 - t : t, 0, 0};
          call.once(call);
        }
      }
    }
  }
  inside = 0;
  fibres::meeting = false;
  for (int i = 0; i < 3; ++i) sigaction(caught[i], before + i, nullptr);
  sigaltstack(&old, nullptr);
  return said;
}

template <class... A>
static const char *launch(void (*kernel)(A...), void **given, unsigned blocks, unsigned threads,
                          bool meet) {
  const Call call = {[](const Call &own) {
                       called((void (*)(A...))own.kernel, own.given, std::index_sequence_for<A...>{});
                     },
                     (void (*)())kernel, given};
  return launched(call, blocks, threads, meet);
}

}  // namespace host

static size_t __cvta_generic_to_shared(const void *p) {
  return (const char *)p - host::__start_block_memory;
}
#define __syncthreads() host::fibres::barrier()
#define __shfl_xor_sync(mask, value, by) host::fibres::shuffled(mask, value, by)
