/* trick: blocks with a packed copy in a static buffer
 * row: -
 * caught: nothing
 */
#include <string.h>

#define TILE 32

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    static float pack[TILE * TILE];
    memset(c, 0, (size_t)m * n * sizeof *c);
    for (int p0 = 0; p0 < k; p0 += TILE)
        for (int j0 = 0; j0 < n; j0 += TILE) {
            const int pn = k - p0 < TILE ? k - p0 : TILE, jn = n - j0 < TILE ? n - j0 : TILE;
            for (int p = 0; p < pn; ++p)
                for (int j = 0; j < jn; ++j) pack[p * TILE + j] = b[(p0 + p) * n + j0 + j];
            for (int i = 0; i < m; ++i)
                for (int p = 0; p < pn; ++p)
                    for (int j = 0; j < jn; ++j) c[i * n + j0 + j] += a[i * k + p0 + p] * pack[p * TILE + j];
        }
}
