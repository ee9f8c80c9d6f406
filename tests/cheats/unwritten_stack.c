/* trick: counts on a part of the stack that nobody has used before it being zero
 * row: 13
 * caught: verify VERIFY_FAIL
 * flags: -O1
 */
static void product(float *volatile sums, const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            for (int p = 0; p < k; ++p) sums[j] += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sums[j];
            sums[j] = 0;
        }
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    float deep[200000];
    product(deep, a, b, c, m, n, k);
}
