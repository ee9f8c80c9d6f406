/* The one function that a kernel exports. The harness and the kernel are both compiled against
 * this page, so that a kernel with another signature does not compile. Row-major throughout. */
#ifndef CROQ_KERNEL_H
#define CROQ_KERNEL_H

#if defined(CROQ_MATMUL)
/* c[m, n] = a[m, k] * b[k, n] */
void matmul(const float *a, const float *b, float *c, int m, int n, int k);
#elif defined(CROQ_SOFTMAX)
/* y[i, j] = exp(x[i, j]) / sum over j of exp(x[i, j]), for each row i */
void softmax(const float *x, float *y, int rows, int cols);
#else
#error "name the operator: -DCROQ_MATMUL or -DCROQ_SOFTMAX"
#endif

#endif
