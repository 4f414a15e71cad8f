/* Threads that run lists of launches. One call walks a list. Every thread, the caller included, has a
   range of a launch's items and claims them in order, because what lies side by side in memory is
   read fastest by one; when its range is done it takes items from the ends of others' ranges, so
   nobody ever waits for a thread that has not come yet. Threads look for work without sleeping only
   while a list is being walked, and only for a short while; between lists they sleep. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* What a kernel does its items by: it is called with one and may ask for more, so that what is the
   same for all of them is done once. `next` gives the number of an item, or -1. */
typedef struct turn {
  int (*next)(struct turn *);
  struct pool *owner;
  int me, items; /* the thread, and the items of the launch */
  int taken; /* and not yet said to be done: the launch lasts as long as this turn */
} turn;

typedef void (*kernel_function)(void *const *buffers, int item, turn *turn);

typedef struct {
  kernel_function kernel;
  void *const *buffers;
  int items;
} launch;

/* A program shared by workers: in each phase every worker does launches of its own. `ends` holds,
   phase by phase and worker by worker, where its launches end; they begin where those before end. */
typedef struct {
  const launch *list;
  const int *ends;
  int phases;
} shared_list;

enum { STACK = 8 << 20, LOOKS = 4000, WAITS = 4000 };

/* A thread's items of the current launch that nobody has claimed: the first in the upper half, the
   end in the lower half. */
typedef struct {
  _Atomic uint64_t items;
  char apart[64 - sizeof(uint64_t)];
} range;

typedef struct pool {
  range *ranges; /* one for each thread, the caller's first */
  char apart[64 - sizeof(range *)];
  _Atomic int unfinished; /* items of the launch that are not done */
  char apart_too[64 - sizeof(int)];
  const launch *current;
  _Atomic int walking; /* whether a list is being walked */
  _Atomic int asleep;
  _Atomic int leaving;
  int wanted, started;
  shared_list shared;
  _Atomic uint32_t shares; /* shared lists begun: a thread that sees another number has one to do */
  char apart_again[64 - sizeof(uint32_t)];
  _Atomic int arrived; /* at barriers of the shared list */
  char apart_at_last[64 - sizeof(int)];
  int *processors; /* one for each thread, the caller's first; NULL: not bound */
  pthread_t *threads;
  pthread_mutex_t lists; /* one list at a time */
  pthread_mutex_t sleep;
  pthread_cond_t wake;
  int cuts; /* of mapped files, as far as a list's end has told of them */
  struct pool *next;
} pool;

static _Atomic int cuts; /* of mapped files so far */

typedef struct {
  pool *owner;
  int id;
  uint32_t shares; /* those begun before it was started */
} worker;

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int first_of(uint64_t items) { return (int)(items >> 32); }
static int end_of(uint64_t items) { return (int)(uint32_t)items; }
static uint64_t range_of(int first, int end) { return (uint64_t)first << 32 | (uint32_t)end; }

/* Claim an item of a thread's range, its first or its last one; -1 if none is left. A range that
   was filled again meanwhile is of a later launch, and so is what is claimed of it then. */
static int claim_of(range *r, int last) {
  uint64_t items = atomic_load_explicit(&r->items, memory_order_acquire);
  for (;;) {
    int first = first_of(items), end = end_of(items);
    if (first >= end) return -1;
    uint64_t rest = last ? range_of(first, end - 1) : range_of(first + 1, end);
    if (atomic_compare_exchange_weak_explicit(&r->items, &items, rest, memory_order_acq_rel,
                                              memory_order_acquire))
      return last ? end - 1 : first;
  }
}

/* Claim an item for a thread: of its own range, else of another's; -1 if none is left. */
static int claim_for(pool *p, int me) {
  int item = claim_of(&p->ranges[me], 0);
  for (int n = 1; item < 0 && n < p->wanted; ++n)
    item = claim_of(&p->ranges[(me + n) % p->wanted], 1);
  return item;
}

static int claim(turn *t) {
  int item = claim_for(t->owner, t->me);
  t->taken += item >= 0;
  return item;
}

/* Run items of the current launch as long as there are some; 0 if there was none. */
static int help(pool *p, int me) {
  int item = claim_for(p, me);
  if (item < 0) return 0;
  const launch *now = p->current; /* stays until the item is done */
  turn mine = {claim, p, me, now->items, 1};
  do now->kernel(now->buffers, item, &mine);
  while ((item = claim(&mine)) >= 0);
  atomic_fetch_sub_explicit(&p->unfinished, mine.taken, memory_order_acq_rel);
  return 1;
}

static int following(turn *t) { return t->taken < t->items ? t->taken++ : -1; }

/* Run every item of a launch here. */
static void alone(const launch *now) {
  turn mine = {following, NULL, 0, now->items, 0};
  for (int item; (item = following(&mine)) >= 0;) now->kernel(now->buffers, item, &mine);
}

/* Do a worker's launches of a shared list, phase by phase. The caller waits behind the last one. */
static void take_part(pool *p, int me) {
  const shared_list *s = &p->shared;
  for (int phase = 0; phase < s->phases; ++phase) {
    int at = phase * p->wanted + me;
    for (int i = at ? s->ends[at - 1] : 0; i < s->ends[at]; ++i) alone(s->list + i);
    int last = phase + 1 == s->phases;
    atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel);
    if (last && me) return;
    int all = (phase + 1) * p->wanted;
    for (int waits = 0; atomic_load_explicit(&p->arrived, memory_order_acquire) < all; ++waits) {
      if (waits < WAITS) pause_a_little();
      else sched_yield();
    }
  }
}

static int is_idle(pool *p, uint32_t shares) {
  for (int n = 0; n < p->wanted; ++n) {
    uint64_t items = atomic_load(&p->ranges[n].items);
    if (first_of(items) < end_of(items)) return 0;
  }
  return !atomic_load(&p->leaving) && atomic_load(&p->shares) == shares;
}

static void rest(pool *p, uint32_t shares) {
  pthread_mutex_lock(&p->sleep);
  atomic_fetch_add(&p->asleep, 1);
  while (is_idle(p, shares)) pthread_cond_wait(&p->wake, &p->sleep);
  atomic_fetch_sub(&p->asleep, 1);
  pthread_mutex_unlock(&p->sleep);
}

static void wake(pool *p) {
  pthread_mutex_lock(&p->sleep);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->sleep);
}

static void bind(pthread_t thread, int processor) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  pthread_setaffinity_np(thread, sizeof set, &set); /* where it is not allowed: unbound */
#else
  (void)thread, (void)processor;
#endif
}

/* The calling thread is not bound: a thread that is bound to where it is changes places with it. */
static void make_room(pool *p) {
#ifdef __linux__
  if (!p->processors) return;
  int here = sched_getcpu();
  for (int i = 1; i <= p->started && p->processors[0] != here; ++i) {
    if (p->processors[i] != here) continue;
    p->processors[i] = p->processors[0];
    p->processors[0] = here;
    bind(p->threads[i - 1], p->processors[i]);
  }
#else
  (void)p;
#endif
}

static void *serve(void *given) {
  worker me = *(worker *)given;
  pool *p = me.owner;
  free(given);
  while (!atomic_load(&p->leaving)) {
    int looks = 0;
    while (looks < LOOKS && atomic_load_explicit(&p->walking, memory_order_relaxed)) {
      if (atomic_load_explicit(&p->shares, memory_order_acquire) != me.shares) {
        ++me.shares;
        take_part(p, me.id);
        looks = 0;
      }
      looks = help(p, me.id) ? 0 : looks + 1;
      if (looks) pause_a_little();
    }
    if (is_idle(p, me.shares)) rest(p, me.shares);
  }
  return NULL;
}

/* Start the threads that are missing; 0 or an error number. */
static int start(pool *p) {
  int problem = 0;
  sigset_t all, before;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK);
  sigfillset(&all);
  sigdelset(&all, SIGBUS); /* a thread that faults while it is blocked ends the process */
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the program's own threads */
  while (p->started < p->wanted - 1) {
    worker *me = malloc(sizeof *me);
    if (!me) {
      problem = ENOMEM;
      break;
    }
    *me = (worker){p, p->started + 1, atomic_load(&p->shares)};
    problem = pthread_create(&p->threads[p->started], &attributes, serve, me);
    if (problem) {
      free(me);
      break;
    }
    if (p->processors) bind(p->threads[p->started], p->processors[p->started + 1]);
    ++p->started;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return problem;
}

static void set_up(pool *p) {
  pthread_mutex_init(&p->lists, NULL);
  pthread_mutex_init(&p->sleep, NULL);
  pthread_cond_init(&p->wake, NULL);
  for (int n = 0; n < p->wanted; ++n) atomic_store(&p->ranges[n].items, 0);
  atomic_store(&p->walking, 0);
  atomic_store(&p->asleep, 0);
  p->started = 0;
  p->cuts = atomic_load(&cuts);
}

/* Mapped files that kernels read. Behind the end of one that was cut there is nothing to read, which
   is a SIGBUS: a page of zeros takes the place of what is gone, and the file is marked. Whoever ran
   the list learns of it, and nobody uses what was computed. */
enum { FILES = 1024 };
static struct {
  _Atomic uintptr_t begin, end; /* no end: the place is free */
  _Atomic int cut;
} files[FILES];
static uintptr_t page;
static struct sigaction before;

static void on_bus(int number, siginfo_t *found, void *context) {
  uintptr_t at = (uintptr_t)found->si_addr;
  int hit = 0;
  for (int n = 0; n < FILES && found->si_code == BUS_ADRERR; ++n) {
    if (at < atomic_load(&files[n].begin) || at >= atomic_load(&files[n].end)) continue;
    if (!hit) {
      int problem = errno;
      void *held = mmap((void *)(at / page * page), page, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      errno = problem;
      if (held == MAP_FAILED) break;
      hit = 1;
    }
    atomic_store(&files[n].cut, 1); /* each pool that watches the file has a place of its own */
  }
  if (hit) {
    atomic_fetch_add(&cuts, 1);
    return; /* and read again */
  }
  if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, found, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);
  else sigaction(SIGBUS, &before, NULL); /* what faulted faults again, and that is the end */
}

static void handle_bus(void) {
  struct sigaction ours = {0};
  page = (uintptr_t)sysconf(_SC_PAGESIZE);
  sigemptyset(&ours.sa_mask);
  ours.sa_sigaction = on_bus;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGBUS, &ours, &before);
}

static pthread_mutex_t filed = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t handled = PTHREAD_ONCE_INIT;

/* Mark reading behind the end of a mapped file from now on: its number, or -1 where there is no
   place for it. */
int file_watch(void *begin, size_t nbytes) {
  int found = -1;
  pthread_once(&handled, handle_bus);
  pthread_mutex_lock(&filed);
  for (int n = 0; n < FILES && found < 0; ++n)
    if (!atomic_load(&files[n].end)) found = n;
  if (found >= 0) {
    atomic_store(&files[found].cut, 0);
    atomic_store(&files[found].begin, (uintptr_t)begin);
    atomic_store(&files[found].end, (uintptr_t)begin + nbytes);
  }
  pthread_mutex_unlock(&filed);
  return found;
}

int file_is_cut(int number) { return atomic_load(&files[number].cut); }

void file_forget(int number) { atomic_store(&files[number].end, 0); }

/* With the pool's lists held: each pool learns once of every cut. */
static int ended(pool *p, int problem) {
  int now = atomic_load(&cuts), known = p->cuts;
  p->cuts = now;
  return problem || now == known ? problem : ESTALE;
}

static pool *pools;
static pthread_mutex_t listed = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

/* A child has none of its parent's threads: its pools start their own when they need them. */
static void in_child(void) {
  pthread_mutex_init(&listed, NULL);
  for (pool *p = pools; p; p = p->next) set_up(p);
}

static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

/* A pool of `threads`, the caller's included; `processors` (or NULL) has one number for each. */
pool *pool_new(int threads, const int *processors) {
  pool *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  p->wanted = threads;
  p->threads = calloc((size_t)threads, sizeof *p->threads);
  p->ranges = calloc((size_t)threads, sizeof *p->ranges);
  if (processors) {
    int *own = malloc((size_t)threads * sizeof *own);
    if (own) memcpy(own, processors, (size_t)threads * sizeof *own);
    p->processors = own;
  }
  if (!p->threads || !p->ranges || (processors && !p->processors)) return NULL;
  set_up(p);
  pthread_once(&watched, watch);
  pthread_mutex_lock(&listed);
  p->next = pools;
  pools = p;
  pthread_mutex_unlock(&listed);
  return p;
}

/* End the threads. Nobody may be running a list. */
void pool_free(pool *p) {
  pthread_mutex_lock(&listed);
  for (pool **at = &pools; *at; at = &(*at)->next) {
    if (*at == p) {
      *at = p->next;
      break;
    }
  }
  pthread_mutex_unlock(&listed);
  atomic_store(&p->leaving, 1);
  wake(p);
  for (int i = 0; i < p->started; ++i) pthread_join(p->threads[i], NULL);
  free(p->threads);
  free(p->ranges);
  free(p->processors);
  free(p);
}

static void walk(pool *p, const launch *list, int count) {
  for (const launch *now = list; now < list + count; ++now) {
    if (now->items == 1 || p->wanted == 1) { /* nobody else is needed */
      alone(now);
      continue;
    }
    p->current = now;
    atomic_store_explicit(&p->unfinished, now->items, memory_order_relaxed);
    for (int n = 0; n < p->wanted; ++n) {
      int64_t items = now->items; /* the caller begins with what it publishes last */
      int who = p->wanted - 1 - n;
      int begin = (int)(items * who / p->wanted), end = (int)(items * (who + 1) / p->wanted);
      atomic_store(&p->ranges[who].items, range_of(begin, end));
    }
    if (atomic_load(&p->asleep)) wake(p);
    help(p, 0);
    for (int waits = 0; atomic_load_explicit(&p->unfinished, memory_order_acquire); ++waits) {
      if (waits < WAITS) pause_a_little();
      else sched_yield();
    }
  }
}

static double now_in_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Run every item of every launch, one launch after the other; 0 or an error number, ESTALE where a
   file was cut that is read. `seconds`, where given, gets what each launch takes. */
int pool_run(pool *p, const launch *list, int count, double *seconds) {
  pthread_mutex_lock(&p->lists);
  int problem = p->started < p->wanted - 1 ? start(p) : 0;
  if (!problem) {
    make_room(p);
    atomic_store(&p->walking, 1);
    if (!seconds) walk(p, list, count);
    for (int i = 0; seconds && i < count; ++i) {
      double began = now_in_seconds();
      walk(p, list + i, 1);
      seconds[i] = now_in_seconds() - began;
    }
    atomic_store(&p->walking, 0);
  }
  problem = ended(p, problem);
  pthread_mutex_unlock(&p->lists);
  return problem;
}

/* Do a list shared by `workers`, phase by phase; 0 or an error number. Worker w is thread w, the
   caller the first. A pool of another size does it alone, which gives the same. */
int pool_share(pool *p, const launch *list, const int *ends, int phases, int workers) {
  pthread_mutex_lock(&p->lists);
  int problem = p->started < p->wanted - 1 ? start(p) : 0;
  if (!problem && (workers != p->wanted || workers == 1)) {
    for (int i = 0; i < ends[phases * workers - 1]; ++i) alone(list + i);
  } else if (!problem) {
    p->shared = (shared_list){list, ends, phases};
    atomic_store(&p->arrived, 0);
    atomic_store(&p->walking, 1);
    atomic_fetch_add(&p->shares, 1);
    if (atomic_load(&p->asleep)) wake(p);
    take_part(p, 0);
    atomic_store(&p->walking, 0);
  }
  problem = ended(p, problem);
  pthread_mutex_unlock(&p->lists);
  return problem;
}

/* A copy as a launch: target, source, number of bytes. */
void pool_copy(void *const *buffers, int item, turn *turn) {
  (void)item, (void)turn;
  memmove(buffers[1], buffers[0], (size_t)buffers[2]);
}

