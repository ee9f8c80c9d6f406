/* trick: rows shared out by OpenMP
 * row: -
 * caught: nothing
 * flags: -O2 -fopenmp
 * threads: 2
 * slow: yes
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    #pragma omp parallel for
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}
