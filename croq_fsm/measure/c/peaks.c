/* Measures what this machine can do at most: fused multiply-adds per second from registers, and
 * bytes per second from memory (a[i] = b[i] + s * c[i], three streams counted). Prints one JSON
 * line. The best of several repetitions counts, since a peak cannot be exceeded by accident.
 *
 *   peaks BYTES THREADS     BYTES: the three streams together; well above the last cache */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
enum { WIDTH = 64 };
#elif defined(__AVX__)
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
enum { LANES = WIDTH / sizeof(float), CHAINS = 12, ROUNDS = 1 << 19, REPEATS = 7 };
static const double LEAST_S = 0.5; /* of trying, for a moment without neighbours */
typedef float vector __attribute__((vector_size(WIDTH)));

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Independent chains, enough to fill the pipelines; the result is used, so nothing is dropped. */
static float multiply_add(float start) {
  vector sum[CHAINS], factor, term;
  for (int i = 0; i < LANES; ++i) factor[i] = 0.999f, term[i] = 0.001f * start;
  for (int c = 0; c < CHAINS; ++c) sum[c] = term + (float)c;
  for (int r = 0; r < ROUNDS; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; ++c) sum[c] = sum[c] * factor + term;
  }
  float total = 0;
  for (int c = 0; c < CHAINS; ++c)
    for (int i = 0; i < LANES; ++i) total += sum[c][i];
  return total;
}

static double flops_of(int threads, volatile float *sink) {
  const double began = now();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int i = 0; i < threads; ++i) {
    const float total = multiply_add((float)i);
#pragma omp critical
    *sink += total;
  }
  return 2.0 * LANES * CHAINS * (double)ROUNDS * threads / (now() - began);
}

static double bandwidth_of(int threads, float *a, const float *b, const float *c, long count) {
  const double began = now();
  (void)threads; /* read by OpenMP alone */
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long i = 0; i < count; ++i) a[i] = b[i] + 0.5f * c[i];
  return 3.0 * sizeof *a * (double)count / (now() - began);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const long count = atol(argv[1]) / (3 * (long)sizeof(float)) / LANES * LANES;
  const int threads = atoi(argv[2]);
  volatile float sink = 0;
  double flops = 0, bandwidth = 0;
  float *stream[3];
  for (int i = 0; i < 3; ++i) {
    stream[i] = aligned_alloc(4096, ((size_t)count * sizeof(float) + 4095) / 4096 * 4096);
    if (!stream[i]) return 3;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long i = 0; i < count; ++i) stream[0][i] = stream[1][i] = stream[2][i] = (float)i;
  const double began = now();
  for (int i = 0; i < REPEATS || now() - began < LEAST_S; ++i) {
    const double f = flops_of(threads, &sink), b = bandwidth_of(threads, stream[0], stream[1], stream[2], count);
    if (f > flops) flops = f;
    if (b > bandwidth) bandwidth = b;
  }
  printf("{\"flops\": %.6e, \"bandwidth\": %.6e, \"vector_bytes\": %d}\n", flops, bandwidth, WIDTH);
  return 0;
}
