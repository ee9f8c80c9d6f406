/* trick: vectors of eight by the compiler's extension, with a scalar remainder
 * row: -
 * caught: nothing
 * flags: -O2 -march=native
 */
#include <string.h>

typedef float eight __attribute__((vector_size(32)));

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i) {
        int j = 0;
        for (; j + 8 <= n; j += 8) {
            eight sum = {0};
            for (int p = 0; p < k; ++p) {
                eight right;
                memcpy(&right, b + p * n + j, sizeof right);
                sum += a[i * k + p] * right;
            }
            memcpy(c + i * n + j, &sum, sizeof sum);
        }
        for (; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
    }
}
