/* Two callers, three threads: each launch reads what the launch before it wrote, at other places, and
   so does each phase of a shared list.
   Built together with pool.c, under a thread sanitizer where there is one. */

#include <pthread.h>
#include <stdio.h>

typedef struct turn {
  int (*next)(struct turn *);
} turn;

typedef struct {
  void (*kernel)(void *const *buffers, int item, turn *turn);
  void *const *buffers;
  int items;
} launch;

struct pool;
struct pool *pool_new(int threads, const int *processors);
void pool_free(struct pool *);
int pool_run(struct pool *, const launch *, int count, double *seconds);
int pool_share(struct pool *, const launch *, const int *ends, int phases, int workers);

#ifndef RUNS
#define RUNS 400
#endif
enum { ITEMS = 13, LAUNCHES = 6, WORKERS = 3 };

/* One item a call. */
static void step(void *const *buffers, int item, turn *unused) {
  const long *from = buffers[0];
  long *to = buffers[1];
  (void)unused;
  to[item] = from[(item + 1) % ITEMS] + 1;
}

/* As many items as there are, after what is the same for all of them. */
static void steps(void *const *buffers, int item, turn *turn) {
  const long *from = buffers[0];
  long *to = buffers[1], copy[ITEMS];
  for (int i = 0; i < ITEMS; ++i) copy[i] = from[i] + 1;
  do to[item] = copy[(item + 1) % ITEMS];
  while ((item = turn->next(turn)) >= 0);
}

/* A worker's places of a phase: every third one, from those of all workers in the phase before. */
static void share(void *const *buffers, int item, turn *unused) {
  const long *from = buffers[0];
  long *to = buffers[1];
  (void)unused;
  for (int i = (int)(long)buffers[2]; i < ITEMS; i += WORKERS)
    if (item == 0) to[i] = from[(i + 1) % ITEMS] + 1;
}

static struct pool *pool;

static void *shared(long *a, long *b);

static void *caller(void *unused) {
  (void)unused;
  long a[ITEMS] = {0}, b[ITEMS] = {0};
  void *there[] = {a, b}, *back[] = {b, a};
  launch list[LAUNCHES];
  for (int i = 0; i < LAUNCHES; ++i) {
    list[i].kernel = i % 3 ? steps : step;
    list[i].buffers = i % 2 ? back : there;
    list[i].items = ITEMS;
  }
  for (int run = 0; run < RUNS; ++run)
    if (pool_run(pool, list, LAUNCHES, NULL)) return (void *)1;
  for (int i = 0; i < ITEMS; ++i)
    if (a[i] != (long)RUNS * LAUNCHES) return (void *)2;
  return shared(a, b);
}

static void *shared(long *a, long *b) {
  launch list[LAUNCHES * WORKERS];
  void *buffers[LAUNCHES * WORKERS][3];
  int ends[LAUNCHES * WORKERS];
  for (int i = 0; i < LAUNCHES * WORKERS; ++i) {
    int phase = i / WORKERS;
    buffers[i][0] = phase % 2 ? b : a;
    buffers[i][1] = phase % 2 ? a : b;
    buffers[i][2] = (void *)(long)(i % WORKERS);
    list[i].kernel = share;
    list[i].buffers = buffers[i];
    list[i].items = 2; /* both are the worker's */
    ends[i] = i + 1;
  }
  for (int run = 0; run < RUNS; ++run)
    if (pool_share(pool, list, ends, LAUNCHES, WORKERS)) return (void *)3;
  for (int i = 0; i < ITEMS; ++i)
    if (a[i] != (long)RUNS * LAUNCHES * 2) return (void *)4;
  return NULL;
}

int main(void) {
  for (int round = 0; round < 3; ++round) {
    pthread_t threads[2];
    void *wrong[2];
    pool = pool_new(3, NULL);
    for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, caller, NULL);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], &wrong[i]);
    pool_free(pool);
    if (wrong[0] || wrong[1]) return 1;
  }
  puts("every item was run once and in order");
  return 0;
}
