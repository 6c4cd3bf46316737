/* What this machine can do at best, by plain loops that no part of tvmfuse or TVM compiled.
 *
 * Usage: peaks THREADS flops           prints GFLOP/s of float32 fused multiply-adds
 *        peaks THREADS read KIB        prints GB/s of summing KIB of floats, over and over
 *
 * All threads begin a pass together; a pass counts by its slowest thread, and the fastest of
 * all passes is printed. A pass takes a fraction of a millisecond, so that other work on the
 * machine leaves some undisturbed; it reads one part of a large buffer, the next pass another.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#define SUMS 12 /* hides the latency of two units, and fits 16 registers */
#define SECONDS 2.0
#define FMA_STEPS 200000L
#define PASS_BYTES (64L << 20)
#define PART_BYTES (16L << 20)
#define MAX_THREADS 256

typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

struct worker {
  pthread_t thread;
  vector *data; /* NULL: arithmetic */
  long part, parts, repeats; /* vectors, count, passes over a part */
  double seconds;
  float result;
};

static pthread_barrier_t barrier;
static int is_done;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static float multiply_add(void) {
  vector sum[SUMS], factor = (vector){0} + 0.999f, term = (vector){0} + 0.001f;
  for (int i = 0; i < SUMS; i++) sum[i] = term * (float)i;
  for (long step = 0; step < FMA_STEPS; step++)
    for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * factor + term;
  for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
  return sum[0][0];
}

static float add_up(const vector *data, long n, long repeats) {
  vector sum[SUMS];
  memset(sum, 0, sizeof sum);
  for (long again = 0; again < repeats; again++)
    for (long at = 0; at + SUMS <= n; at += SUMS)
      for (int i = 0; i < SUMS; i++) sum[i] += data[at + i];
  for (int i = 1; i < SUMS; i++) sum[0] += sum[i];
  return sum[0][0];
}

static void *work(void *argument) {
  struct worker *self = argument;
  for (long pass = 0;; pass++) {
    pthread_barrier_wait(&barrier);
    if (is_done) return NULL;
    const vector *part = self->data + pass % self->parts * self->part;
    double begin = now();
    self->result += self->data ? add_up(part, self->part, self->repeats) : multiply_add();
    self->seconds = now() - begin;
    pthread_barrier_wait(&barrier);
  }
}

int main(int argc, char **argv) {
  static struct worker workers[MAX_THREADS];
  int threads = argc > 2 ? atoi(argv[1]) : 0, is_read = argc == 4 && !strcmp(argv[2], "read");
  if (threads < 1 || threads > MAX_THREADS) return fprintf(stderr, "see the top of peaks.c\n"), 2;
  long bytes = is_read ? atol(argv[3]) * 1024 / threads : 0;
  long parts = bytes * threads > PART_BYTES ? bytes * threads / PART_BYTES : 1;
  long part = bytes / parts / VECTOR_BYTES / SUMS * SUMS;
  long repeats = parts > 1 || !part ? 1 : 1 + PASS_BYTES / (part * VECTOR_BYTES);
  pthread_barrier_init(&barrier, NULL, threads + 1);
  for (int t = 0; t < threads; t++) {
    struct worker *w = &workers[t];
    w->part = part, w->parts = parts, w->repeats = repeats;
    if (is_read) {
      w->data = aligned_alloc(64, (part * parts * VECTOR_BYTES + 63) / 64 * 64);
      for (long i = 0; i < part * parts; i++) w->data[i] = (vector){0} + 1.0f;
    }
    pthread_create(&w->thread, NULL, work, w);
  }
  double best = 1e9, stop = now() + SECONDS;
  while (now() < stop) {
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    double slowest = 0;
    for (int t = 0; t < threads; t++)
      if (workers[t].seconds > slowest) slowest = workers[t].seconds;
    if (slowest < best) best = slowest;
  }
  is_done = 1;
  pthread_barrier_wait(&barrier);
  double flops = 2.0 * FMA_STEPS * SUMS * (VECTOR_BYTES / 4);
  double amount = is_read ? (double)repeats * part * VECTOR_BYTES : flops;
  printf("%.2f\n", threads * amount / best / 1e9);
  return 0;
}
