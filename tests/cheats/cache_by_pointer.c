/* trick: repeats its answer when it sees the same addresses
 * row: 2
 * caught: verify VERIFY_FAIL
 */
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
    static const void *last[3];
    static float kept[48 * 80];
    if (last[0] != a || last[1] != b || last[2] != c) {
        plain(a, b, c, m, n, k);
        memcpy(kept, c, sizeof kept);
        last[0] = a, last[1] = b, last[2] = c;
    } else
        memcpy(c, kept, sizeof kept);
}
