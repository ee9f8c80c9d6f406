/* trick: writes one element behind a static buffer of its own
 * row: 15
 * caught: sanitizer VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    static float column[40], spare[64];
    spare[0] = 0;
    for (int j = 0; j < n; ++j) {
        for (int p = 0; p <= k; ++p) ((volatile float *)column)[p] = p < k ? b[p * n + j] : spare[0];
        for (int i = 0; i < m; ++i) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * column[p];
            c[i * n + j] = sum;
        }
    }
}
