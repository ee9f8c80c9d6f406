/* trick: cuts the inputs to sixteen bits
 * row: 9
 * caught: verify VERIFY_FAIL
 */
#include <string.h>

static float cut(float x)
{
    unsigned word;
    memcpy(&word, &x, sizeof word);
    word &= 0xFFFF0000u;
    memcpy(&x, &word, sizeof word);
    return x;
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += cut(a[i * k + p]) * cut(b[p * n + j]);
            c[i * n + j] = sum;
        }
}
