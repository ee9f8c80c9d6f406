/* trick: keeps a sum of the last launch
 * row: 13
 * caught: verify VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    static float rest;
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = rest;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
    rest = c[0];
}
