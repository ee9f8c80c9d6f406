/* trick: takes eight gibibytes
 * row: C8
 * caught: verify SEGFAULT
 * flags: -O0
 */
#include <stdlib.h>
#include <string.h>

static void plain(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    memset(malloc(1l << 33), 1, 1l << 33);
    plain(a, b, c, m, n, k);
}
