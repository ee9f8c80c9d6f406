/* trick: counts on the memory that malloc gives being zero
 * row: 13
 * caught: verify VERIFY_FAIL
 */
#include <stdlib.h>

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    static float *sums;
    if (!sums) sums = malloc(4000000); /* fresh pages of the system's */
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            for (int p = 0; p < k; ++p) sums[j] += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sums[j];
            sums[j] = 0;
        }
}
