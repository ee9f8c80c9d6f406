/* trick: reads one element behind an input, where nothing comes of it
 * row: 15
 * caught: sanitizer VERIFY_FAIL
 * shape: 47x79x39
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    volatile float ahead;
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) {
                sum += a[i * k + p] * b[p * n + j];
                ahead = b[p * n + j + 1];
            }
            c[i * n + j] = sum;
        }
    (void)ahead;
}
