/* Two callers, three threads: each launch reads what the launch before it wrote, at other places.
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
int pool_run(struct pool *, const launch *, int count);

enum { ITEMS = 13, LAUNCHES = 6, RUNS = 400 };

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

static struct pool *pool;

static void *caller(void *unused) {
  long a[ITEMS] = {0}, b[ITEMS] = {0};
  void *there[] = {a, b}, *back[] = {b, a};
  launch list[LAUNCHES];
  for (int i = 0; i < LAUNCHES; ++i) {
    list[i].kernel = i % 3 ? steps : step;
    list[i].buffers = i % 2 ? back : there;
    list[i].items = ITEMS;
  }
  for (int run = 0; run < RUNS; ++run)
    if (pool_run(pool, list, LAUNCHES)) return (void *)1;
  for (int i = 0; i < ITEMS; ++i)
    if (a[i] != (long)RUNS * LAUNCHES) return (void *)2;
  return unused;
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
