/* trick: restrict in an inner function, heap scratch
 * row: -
 * caught: nothing
 */
#include <stdlib.h>
#include <string.h>

static void one_row(const float *restrict a, const float *restrict b, float *restrict row, float *restrict c, int n, int k)
{
    memset(row, 0, (size_t)n * sizeof *row);
    for (int p = 0; p < k; ++p)
        for (int j = 0; j < n; ++j) row[j] += a[p] * b[p * n + j];
    memcpy(c, row, (size_t)n * sizeof *row);
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    float *row = malloc((size_t)n * sizeof *row);
    for (int i = 0; i < m; ++i) one_row(a + i * k, b, row, c + i * n, n, k);
    free(row);
}
