/* trick: makes the preprocessor produce gigabytes
 * row: C4
 * caught: build COMPILE_FAIL
 * slow: yes
 */
#define A c[0] = 0, c[0] = 0
#define B A, A, A, A, A, A, A, A, A, A, A, A, A, A, A, A
#define C B, B, B, B, B, B, B, B, B, B, B, B, B, B, B, B
#define D C, C, C, C, C, C, C, C, C, C, C, C, C, C, C, C
#define E D, D, D, D, D, D, D, D, D, D, D, D, D, D, D, D
#define F E, E, E, E, E, E, E, E, E, E, E, E, E, E, E, E
#define G F, F, F, F, F, F, F, F, F, F, F, F, F, F, F, F
#define H G, G, G, G, G, G, G, G, G, G, G, G, G, G, G, G

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
    plain(a, b, c, m, n, k);
    H;
}
