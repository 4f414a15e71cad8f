/* Threads that run lists of launches. One call walks a list; the items of a launch are claimed one
   by one by whoever is free, the caller included, so nobody ever waits for a thread that has not
   come yet. Threads look for work without sleeping only while a list is being walked, and only for
   a short while; between lists they sleep. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What a kernel does its items by: it is called with one and may ask for more, so that what is the
   same for all of them is done once. `next` gives the number of an item, or -1. */
typedef struct turn {
  int (*next)(struct turn *);
  struct pool *owner;
  int items; /* of the launch */
  int taken; /* and not yet said to be done: the launch lasts as long as this turn */
} turn;

typedef void (*kernel_function)(void *const *buffers, int item, turn *turn);

typedef struct {
  kernel_function kernel;
  void *const *buffers;
  int items;
} launch;

enum { STACK = 8 << 20, LOOKS = 4000, WAITS = 4000 };

/* `work` holds the number of the launch in its upper half and the items left to claim in its lower
   half: an item is claimed, and its launch known, in one step. The number only grows. */
typedef struct pool {
  _Atomic uint64_t work;
  char apart[64 - sizeof(uint64_t)];
  _Atomic int unfinished; /* items of the launch that are not done */
  char apart_too[64 - sizeof(int)];
  const launch *current;
  _Atomic int walking; /* whether a list is being walked */
  _Atomic int asleep;
  _Atomic int leaving;
  int wanted, started;
  uint32_t number;
  int *processors; /* one for each thread, the caller's first; NULL: not bound */
  pthread_t *threads;
  pthread_mutex_t lists; /* one list at a time */
  pthread_mutex_t sleep;
  pthread_cond_t wake;
  struct pool *next;
} pool;

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int left(uint64_t work) { return (int)(uint32_t)work; }

/* Claim another item of the launch; -1 if none is left. */
static int claim(turn *t) {
  _Atomic uint64_t *place = &t->owner->work;
  uint64_t work = atomic_load_explicit(place, memory_order_acquire);
  while (left(work)) {
    if (atomic_compare_exchange_weak_explicit(place, &work, work - 1, memory_order_acq_rel,
                                              memory_order_acquire)) {
      ++t->taken;
      return t->items - left(work);
    }
  }
  return -1;
}

/* Run items of the current launch as long as there are some; 0 if there was none. */
static int help(pool *p) {
  uint64_t work = atomic_load_explicit(&p->work, memory_order_acquire);
  while (left(work)) {
    if (!atomic_compare_exchange_weak_explicit(&p->work, &work, work - 1, memory_order_acq_rel,
                                               memory_order_acquire))
      continue;
    const launch *now = p->current; /* stays until the item is done */
    turn mine = {claim, p, now->items, 1};
    int item = now->items - left(work);
    do now->kernel(now->buffers, item, &mine);
    while ((item = claim(&mine)) >= 0);
    atomic_fetch_sub_explicit(&p->unfinished, mine.taken, memory_order_acq_rel);
    return 1;
  }
  return 0;
}

static int following(turn *t) { return t->taken < t->items ? t->taken++ : -1; }

/* Run every item of a launch here. */
static void alone(const launch *now) {
  turn mine = {following, NULL, now->items, 0};
  for (int item; (item = following(&mine)) >= 0;) now->kernel(now->buffers, item, &mine);
}

static int is_idle(pool *p) {
  return !left(atomic_load(&p->work)) && !atomic_load(&p->leaving);
}

static void rest(pool *p) {
  pthread_mutex_lock(&p->sleep);
  atomic_fetch_add(&p->asleep, 1);
  while (is_idle(p)) pthread_cond_wait(&p->wake, &p->sleep);
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
  pool *p = given;
  while (!atomic_load(&p->leaving)) {
    int looks = 0;
    while (looks < LOOKS && atomic_load_explicit(&p->walking, memory_order_relaxed)) {
      looks = help(p) ? 0 : looks + 1;
      if (looks) pause_a_little();
    }
    if (is_idle(p)) rest(p);
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
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the program's own threads */
  while (p->started < p->wanted - 1) {
    problem = pthread_create(&p->threads[p->started], &attributes, serve, p);
    if (problem) break;
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
  atomic_store(&p->work, (uint64_t)p->number << 32);
  atomic_store(&p->walking, 0);
  atomic_store(&p->asleep, 0);
  p->started = 0;
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
  if (processors) {
    int *own = malloc((size_t)threads * sizeof *own);
    if (own) memcpy(own, processors, (size_t)threads * sizeof *own);
    p->processors = own;
  }
  if (!p->threads || (processors && !p->processors)) return NULL;
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
    ++p->number;
    atomic_store(&p->work, (uint64_t)p->number << 32 | (uint32_t)now->items);
    if (atomic_load(&p->asleep)) wake(p);
    help(p);
    for (int waits = 0; atomic_load_explicit(&p->unfinished, memory_order_acquire); ++waits) {
      if (waits < WAITS) pause_a_little();
      else sched_yield();
    }
  }
}

/* Run every item of every launch, one launch after the other; 0 or an error number. */
int pool_run(pool *p, const launch *list, int count) {
  pthread_mutex_lock(&p->lists);
  int problem = p->started < p->wanted - 1 ? start(p) : 0;
  if (!problem) {
    make_room(p);
    atomic_store(&p->walking, 1);
    walk(p, list, count);
    atomic_store(&p->walking, 0);
  }
  pthread_mutex_unlock(&p->lists);
  return problem;
}

/* A copy as a launch: target, source, number of bytes. */
void pool_copy(void *const *buffers, int item, turn *turn) {
  (void)item, (void)turn;
  memmove(buffers[1], buffers[0], (size_t)buffers[2]);
}

