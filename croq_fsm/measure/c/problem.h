/* What the harness knows about the operator: its operands, and how to call the kernel.
 *
 * Both operators commute with rolling: when the rows (and columns) of the inputs are rolled, the
 * output is the rolled output, exactly the same numbers in other places. So one reference serves
 * several contents of a verification. */
#ifndef CROQ_PROBLEM_H
#define CROQ_PROBLEM_H

#include <stddef.h>

#include "kernel.h"

struct tensor {
  const char *name;
  size_t rows, cols;
  int rolls_rows, rolls_cols; /* which of the two shifts apply */
};

#if defined(CROQ_MATMUL)
enum { SIZES = 3, INPUTS = 2 };

static void describe(const int *size, struct tensor *inputs, struct tensor *output) {
  const size_t m = (size_t)size[0], n = (size_t)size[1], k = (size_t)size[2];
  inputs[0] = (struct tensor){"a", m, k, 1, 0};
  inputs[1] = (struct tensor){"b", k, n, 0, 1};
  *output = (struct tensor){"c", m, n, 1, 1};
}

static void launch(float *const *inputs, float *output, const int *size) {
  matmul(inputs[0], inputs[1], output, size[0], size[1], size[2]);
}
#else
enum { SIZES = 2, INPUTS = 1 };

static void describe(const int *size, struct tensor *inputs, struct tensor *output) {
  inputs[0] = (struct tensor){"x", (size_t)size[0], (size_t)size[1], 1, 1};
  *output = (struct tensor){"y", (size_t)size[0], (size_t)size[1], 1, 1};
}

static void launch(float *const *inputs, float *output, const int *size) {
  softmax(inputs[0], output, size[0], size[1]);
}
#endif

static size_t bytes_of(const struct tensor *t) { return t->rows * t->cols * sizeof(float); }

#endif
