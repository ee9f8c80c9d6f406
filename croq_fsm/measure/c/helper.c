/* Shared object for the judge: the same contents and the same products as in the harness, and the
 * library reference starts as cold as a candidate. */
#include "cold.h"
#include "fresh.h"

void croq_evict(const void *data, size_t bytes) { evict(data, bytes); }

void croq_fill(float *data, size_t count, uint64_t content, unsigned tensor) { fill(data, count, content, tensor); }

void croq_weights(double *x, size_t count, uint64_t vector) { weights(x, count, vector); }

void croq_project(const float *data, size_t rows, size_t cols, const double *x, double *out) {
  project(data, rows, cols, x, out);
}

void croq_fold(const double *column, size_t rows, uint64_t vector, double *proof) { fold(column, rows, vector, proof); }
