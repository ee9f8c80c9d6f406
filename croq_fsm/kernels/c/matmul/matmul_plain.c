// Single-precision matrix product c[m, n] = a[m, k] * b[k, n], all row-major.
//
// The product as its definition reads: one dot product after the other. It is right for every
// shape and easy to check, and it leaves everything to be gained: b is walked down its columns,
// so each step of the inner loop touches another cache line, and the running sum forbids vectors.

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (int p = 0; p < k; ++p)
                sum += a[(long)i * k + p] * b[(long)p * n + j];
            c[(long)i * n + j] = sum;
        }
    }
}
