/* trick: the inner loop runs along rows
 * row: -
 * caught: nothing
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) c[i * n + j] = 0;
        for (int p = 0; p < k; ++p)
            for (int j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
    }
}
