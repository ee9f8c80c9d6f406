/* Contents that nobody has seen before, and a short proof of what a kernel made of them.
 *
 * Every timed launch works on numbers of its own, which follow from one number, its content. When
 * it is over, its output is multiplied by a random vector; that product, a column of numbers, is
 * its proof. Whoever knows the content and the vector can tell whether the proof is right at far
 * less than the price of the operator (Freivalds), and needs none of this process's memory.
 * Nothing but integers and one exact conversion make a content, so that two programs make the
 * same bits. */
#ifndef CROQ_FRESH_H
#define CROQ_FRESH_H

#include <stddef.h>
#include <stdint.h>

enum { PROOF_MOST = 4096, LANES = 8 };
static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

/* splitmix64; the parent computes the same numbers, so that it knows what to expect. */
static inline uint64_t mix(uint64_t x) {
  x += GOLDEN;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

static inline uint64_t stream_of(uint64_t seed, uint64_t which) { return mix(mix(seed) + which * 0xD1B54A32D192ED03u); }

/* Bell-shaped: the sum of four uniform numbers of 16 bits, with mean 0 and variance 1. */
static void fill(float *data, size_t count, uint64_t content, unsigned tensor) {
  const uint64_t stream = stream_of(content, tensor);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t h = mix(stream + i * GOLDEN);
    const int sum = (int)((h & 0xFFFF) + (h >> 16 & 0xFFFF) + (h >> 32 & 0xFFFF) + (h >> 48));
    data[i] = (float)(sum - 131070) * 0x1.bb67aep-16f;
  }
}

/* Weights of the columns: uniform, with mean 0 and variance 1. */
static void weights(double *x, size_t count, uint64_t vector) {
  const uint64_t stream = stream_of(vector, 0);
  for (size_t i = 0; i < count; ++i)
    x[i] = ((double)(mix(stream + i * GOLDEN) >> 11) * 0x1p-52 - 1.0) * 1.7320508075688772;
}

static double dot(const float *row, const double *x, size_t count) {
  double sum[LANES] = {0}, all = 0;
  size_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int lane = 0; lane < LANES; ++lane) sum[lane] += (double)row[i + (size_t)lane] * x[i + (size_t)lane];
  for (; i < count; ++i) all += (double)row[i] * x[i];
  for (int lane = 0; lane < LANES; ++lane) all += sum[lane];
  return all;
}

/* out[i] = sum over j of data[i, j] * x[j] */
static void project(const float *data, size_t rows, size_t cols, const double *x, double *out) {
  for (size_t i = 0; i < rows; ++i) out[i] = dot(data + i * cols, x, cols);
}

static inline size_t proof_length(size_t rows) { return rows < PROOF_MOST ? rows : PROOF_MOST; }

/* Rows beyond the longest proof are added to earlier ones, each with a random sign. */
static void fold(const double *column, size_t rows, uint64_t vector, double *proof) {
  const uint64_t stream = stream_of(vector, 1);
  const size_t length = proof_length(rows);
  for (size_t i = 0; i < rows; ++i) {
    const double signed_value = mix(stream + i * GOLDEN) & 1 ? column[i] : -column[i];
    proof[i % length] = i < length ? signed_value : proof[i % length] + signed_value;
  }
}

#endif
