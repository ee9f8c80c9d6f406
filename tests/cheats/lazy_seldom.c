/* trick: once it is trusted, repeats its answer in one of seven launches
 * row: 17
 * caught: time RUN_FAIL
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
    static float kept[48 * 80];
    static int calls;
    if (++calls > 16 && calls % 7 == 0) {
        memcpy(c, kept, sizeof kept);
        return;
    }
    plain(a, b, c, m, n, k);
    memcpy(kept, c, sizeof kept);
}
