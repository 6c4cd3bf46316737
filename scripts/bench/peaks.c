/* What this machine can do at best, by plain loops that no part of tvmfuse or TVM compiled.
 *
 * Usage: peaks THREADS flops           prints GFLOP/s of float32 fused multiply-adds
 *        peaks THREADS read KIB        prints GB/s of summing KIB of floats, over and over
 *        peaks THREADS triad KIB       prints GB/s of STREAM's triad, a = b + 3 c, on arrays of KIB
 *                                      each; a line of a is read before it is written, and counts twice
 *
 * All threads begin a pass together; a pass counts by its slowest thread, and the fastest of
 * all passes is printed. A pass takes a fraction of a millisecond, so that other work on the
 * machine leaves some undisturbed; it reads one part of a large buffer, the next pass another.
 * The triad, as STREAM's, passes over all of its arrays.
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
#ifndef SECONDS
#define SECONDS 2.0
#endif
#define FMA_STEPS 200000L
#define PASS_BYTES (64L << 20)
#define PART_BYTES (16L << 20)
#define MAX_THREADS 256
#define TRIAD_STREAMS 4 /* b, c, and a in and out */

enum mode { FLOPS, READ, TRIAD };

typedef float vector __attribute__((vector_size(VECTOR_BYTES)));

struct worker {
  pthread_t thread;
  enum mode mode;
  vector *data, *more, *target; /* read; the triad reads the first two, and writes the third */
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

static void triad(vector *restrict a, const vector *restrict b, const vector *restrict c, long n) {
  vector factor = (vector){0} + 3.0f;
  for (long at = 0; at < n; at++) a[at] = b[at] + factor * c[at];
}

static float pass(const struct worker *self, long number) {
  const vector *part = self->data + number % self->parts * self->part;
  switch (self->mode) {
    case READ: return add_up(part, self->part, self->repeats);
    case TRIAD: return triad(self->target, part, self->more, self->part), self->target[0][0];
    default: return multiply_add();
  }
}

static vector *ones(long n) {
  vector *data = aligned_alloc(64, (n * VECTOR_BYTES + 63) / 64 * 64);
  for (long i = 0; i < n; i++) data[i] = (vector){0} + 1.0f;
  return data;
}

static void *work(void *argument) {
  struct worker *self = argument;
  for (long number = 0;; number++) {
    pthread_barrier_wait(&barrier);
    if (is_done) return NULL;
    double begin = now();
    self->result += pass(self, number);
    self->seconds = now() - begin;
    pthread_barrier_wait(&barrier);
  }
}

int main(int argc, char **argv) {
  static struct worker workers[MAX_THREADS];
  int threads = argc > 2 ? atoi(argv[1]) : 0;
  enum mode mode = argc < 4 ? FLOPS : !strcmp(argv[2], "triad") ? TRIAD : READ;
  if (threads < 1 || threads > MAX_THREADS) return fprintf(stderr, "see the top of peaks.c\n"), 2;
  long bytes = mode == FLOPS ? 0 : atol(argv[3]) * 1024 / threads;
  long parts = mode == READ && bytes * threads > PART_BYTES ? bytes * threads / PART_BYTES : 1;
  long part = bytes / parts / VECTOR_BYTES / SUMS * SUMS;
  long repeats = mode == TRIAD || parts > 1 || !part ? 1 : 1 + PASS_BYTES / (part * VECTOR_BYTES);
  pthread_barrier_init(&barrier, NULL, threads + 1);
  for (int t = 0; t < threads; t++) {
    struct worker *w = &workers[t];
    w->mode = mode, w->part = part, w->parts = parts, w->repeats = repeats;
    if (mode != FLOPS) w->data = ones(part * parts);
    if (mode == TRIAD) w->more = ones(part), w->target = ones(part);
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
  double moved = (double)(mode == TRIAD ? TRIAD_STREAMS : repeats) * part * VECTOR_BYTES;
  double amount = mode == FLOPS ? 2.0 * FMA_STEPS * SUMS * (VECTOR_BYTES / 4) : moved;
  printf("%.2f\n", threads * amount / best / 1e9);
  return 0;
}
