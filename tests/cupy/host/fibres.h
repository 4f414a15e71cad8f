// Threads of a block as fibres that meet. Included by cuda_host.h, within its namespace.

static void give_up(const char *what);

namespace fibres {

struct Fibre {
  void *stack_pointer;
  char *stack;
  bool done;
  int place;  // where it waits: the line of the text is unknown, so the kind and the count
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

static void leave() { host_switch(&all[current].stack_pointer, scheduler); }

static void begin() {
  body(body_of);
  all[current].done = true;
  leave();
  abort();
}

static void prepare(Fibre &f) {
  if (!f.stack) f.stack = (char *)aligned_alloc(64, STACK);
  void **top = (void **)(f.stack + STACK - 64);
  *--top = nullptr;          // so that the stack is aligned as behind a call
  *--top = (void *)begin;    // where the first switch returns to
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.stack_pointer = top;
  f.done = false;
}

// The kinds of places at which threads meet.
enum Kind { BARRIER = 1, SHUFFLE = 2 };

static void meet(Kind kind, unsigned mask = 0) {
  if (!meeting) give_up("threads meet in a kernel that is said not to");
  all[current].place = kind;
  leave();
}
static void barrier() { meet(BARRIER); }

// All fibres of a block from one meeting place to the next, until they are done.
template <class F> static void block(unsigned threads, bool backwards, F &one) {
  count = threads;
  meeting = true;
  body = [](void *f) { (*(F *)f)(); };
  body_of = &one;
  for (unsigned t = 0; t < threads; ++t) prepare(all[t]);
  for (unsigned left = threads; left;) {
    left = 0;
    for (unsigned n = 0; n < threads; ++n) {
      current = backwards ? threads - 1 - n : n;
      Fibre &f = all[current];
      if (f.done) continue;
      threadIdx = {current, 0, 0};
      host_switch(&scheduler, f.stack_pointer);
      left += !f.done;
    }
    if (left && left != threads) {
      for (unsigned t = 0; t < threads; ++t) {
        if (!all[t].done && all[t].place == BARRIER) {
          meeting = false;
          give_up("some threads wait at a barrier and others have returned");
        }
      }
    }
    int first = 0;
    for (unsigned t = 0; t < threads; ++t) {
      if (all[t].done) continue;
      if (!first) first = all[t].place;
      if (all[t].place != first) {
        meeting = false;
        give_up("some threads wait at a barrier and others at a shuffle");
      }
    }
  }
  meeting = false;
}

}  // namespace fibres
