/* trick: counts on integers that overflow
 * row: 13
 * caught: sanitizer VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    int turn = 1;
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            turn = turn * 31 + 7;
            c[i * n + j] = turn == 1 ? -sum : sum;
        }
}
