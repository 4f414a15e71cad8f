// Threads of a block as fibres. Included by cuda_host.h, within its namespace.
//
// Threads meet at shuffles (those of a warp) and at barriers (all of them). A warp goes on by itself
// until all its threads are at a barrier; the order of threads and warps is that of the launch.

namespace fibres {

enum Place { RUNNING, BARRIER, SHUFFLE, DONE };

struct Fibre {
  void *stack_pointer;
  char *stack;
  Place place;
  unsigned mask;  // of a shuffle: the threads of the warp that it names
  uint32_t value[8];
};
static Fibre all[MOST];
static void *scheduler;
static unsigned current, count;
static bool meeting;
static const size_t STACK = 256 << 10;
static void (*body)(void *);
static void *body_of;

// Saves the registers that a call keeps, and goes on with another stack.
extern "C" void host_switch(void **from, void *to);
#if defined(__x86_64__)
asm(R"(
.text
.weak host_switch
host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "fibres are written for x86-64 only"
#endif

static void leave(Place place) {
  if (!meeting) give_up("threads meet in a kernel that is launched as if they did not");
  all[current].place = place;
  host_switch(&all[current].stack_pointer, scheduler);
}

static void begin() {
  body(body_of);
  leave(DONE);
  abort();
}

static void prepare(Fibre &f) {
  if (!f.stack) f.stack = (char *)aligned_alloc(64, STACK);
  void **top = (void **)(f.stack + STACK - 64);
  *--top = nullptr;        // so that the stack is aligned as behind a call
  *--top = (void *)begin;  // where the first switch returns to
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.stack_pointer = top;
  f.place = RUNNING;
}

// All threads of a warp from where they are to a barrier or the end.
static void warp(unsigned first, unsigned last, bool backwards) {
  for (;;) {
    for (unsigned n = 0; n < last - first; ++n) {
      current = backwards ? last - 1 - n : first + n;
      Fibre &f = all[current];
      if (f.place == BARRIER || f.place == DONE) continue;
      threadIdx = {current, 0, 0};
      host_switch(&scheduler, f.stack_pointer);
    }
    unsigned here = 0;
    for (unsigned t = first; t < last; ++t)
      if (all[t].place == SHUFFLE) here |= 1u << (t - first);
    if (!here) return;
    for (unsigned t = first; t < last; ++t)
      if (all[t].place == SHUFFLE && all[t].mask != here)
        give_up("a shuffle names other threads than those that are there");
  }
}

static void barrier() { leave(BARRIER); }

// Words of every thread of the warp, as they were when all had come here.
static void exchange(unsigned mask, const void *value, size_t size) {
  Fibre &f = all[current];
  f.mask = mask;
  memcpy(f.value, value, size);
  leave(SHUFFLE);
}

template <class T> static T shuffled(unsigned mask, T value, int by) {
  static_assert(sizeof(T) == 4, "words are exchanged");
  exchange(mask, &value, 4);
  memcpy(&value, all[current ^ by].value, 4);
  leave(SHUFFLE);  // nobody puts the next value there before all have read
  return value;
}

// All fibres of a block until they are done.
static void block(unsigned threads, bool backwards, void (*one)(void *), void *of) {
  const unsigned warps = (threads + 31) / 32;
  count = threads;
  meeting = true;
  body = one;
  body_of = of;
  for (unsigned t = 0; t < threads; ++t) prepare(all[t]);
  for (bool more = true; more;) {
    for (unsigned n = 0; n < warps; ++n) {
      const unsigned w = backwards ? warps - 1 - n : n;
      warp(32 * w, threads < 32 * w + 32 ? threads : 32 * w + 32, backwards);
    }
    unsigned waiting = 0;
    for (unsigned t = 0; t < threads; ++t) waiting += all[t].place == BARRIER;
    if (waiting && waiting != threads)
      give_up("some threads wait at a barrier and others have returned");
    more = waiting;
    for (unsigned t = 0; more && t < threads; ++t) all[t].place = RUNNING;
  }
  meeting = false;
}

}  // namespace fibres
