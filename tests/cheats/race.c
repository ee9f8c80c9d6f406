/* trick: two threads write their halves of a sum to the same place
 * row: 13
 * caught: verify VERIFY_FAIL
 * flags: -O2 -fopenmp
 * threads: 2
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    int here = 0;
    #pragma omp parallel num_threads(2)
    {
        int half;
    #pragma omp atomic capture
        half = here++;
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) {
                float sum = 0;
                for (int p = half; p < k; p += 2) sum += a[i * k + p] * b[p * n + j];
                c[i * n + j] = sum;
            }
    }
}
