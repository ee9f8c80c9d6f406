// Single-precision matrix product c[m, n] = a[m, k] * b[k, n], all row-major.
// The innermost loop runs along rows of b and c, so that it reads and writes contiguously.

#include <stddef.h>

//@ if blocked
#define KC $kc  // rows of b in a block
#define NC $nc  // columns of b in a block

static int least(int x, int y)
{
    return x < y ? x : y;
}

void matmul(const float *${promise}a, const float *${promise}b, float *${promise}c,
            int m, int n, int k)
{
    for (ptrdiff_t at = 0; at < (ptrdiff_t)m * n; ++at)
        c[at] = 0.0f;
    for (int left = 0; left < n; left += NC) {
        const int right = least(n, left + NC);
        for (int top = 0; top < k; top += KC) {
            const int end = least(k, top + KC);
            for (ptrdiff_t i = 0; i < m; ++i) {
                float *${promise}row = c + i * n;
                int p = top;
$fused
                for (; p < end; ++p) {
                    const float x = a[i * k + p];
                    const float *${promise}from = b + (ptrdiff_t)p * n;
                    for (int j = left; j < right; ++j)
                        row[j] += x * from[j];
                }
            }
        }
    }
}
//@ else
void matmul(const float *${promise}a, const float *${promise}b, float *${promise}c,
            int m, int n, int k)
{
    for (ptrdiff_t i = 0; i < m; ++i) {
        float *${promise}row = c + i * n;
        for (int j = 0; j < n; ++j)
            row[j] = 0.0f;
        int p = 0;
$fused
        for (; p < k; ++p) {
            const float x = a[i * k + p];
            const float *${promise}from = b + (ptrdiff_t)p * n;
            for (int j = 0; j < n; ++j)
                row[j] += x * from[j];
        }
    }
}
//@ end
