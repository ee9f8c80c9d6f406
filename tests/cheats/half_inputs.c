/* trick: rounds the inputs to half precision
 * row: 9
 * caught: verify VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += (float)(_Float16)a[i * k + p] * (float)(_Float16)b[p * n + j];
            c[i * n + j] = sum;
        }
}
