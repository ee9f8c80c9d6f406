// A program with a host part of its own: axpby is no operator that croq_fsm knows.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define N (1 << 24)
#define BLOCK 256
#define PER_THREAD 1
#define WARMUP 10
#define REPEATS 50

__global__ void axpby_kernel(const float *x, const float *y, float *z, float a, float b, int n) {
  int stride = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) z[i] = a * x[i] + b * y[i];
}

#define MUST(call)                                                  \
  do {                                                              \
    cudaError_t e = (call);                                         \
    if (e != cudaSuccess) {                                         \
      std::printf("Test FAILED: %s\n", cudaGetErrorString(e));      \
      return 1;                                                     \
    }                                                               \
  } while (0)

int main() {
  std::vector<float> x(N), y(N), z(N);
  std::srand(7);
  for (int i = 0; i < N; i++) x[i] = std::rand() % 1000 * 1e-3f, y[i] = std::rand() % 1000 * 1e-3f;
  float *dx, *dy, *dz;
  MUST(cudaMalloc(&dx, N * sizeof(float)));
  MUST(cudaMalloc(&dy, N * sizeof(float)));
  MUST(cudaMalloc(&dz, N * sizeof(float)));
  MUST(cudaMemcpy(dx, x.data(), N * sizeof(float), cudaMemcpyHostToDevice));
  MUST(cudaMemcpy(dy, y.data(), N * sizeof(float), cudaMemcpyHostToDevice));
  MUST(cudaMemset(dz, 0xff, N * sizeof(float)));
  cudaEvent_t start, stop;
  MUST(cudaEventCreate(&start));
  MUST(cudaEventCreate(&stop));
  for (int i = 0; i < WARMUP; i++) axpby_kernel<<<N / BLOCK, BLOCK>>>(dx, dy, dz, 2.0f, 3.0f, N);
  MUST(cudaEventRecord(start));
  for (int i = 0; i < REPEATS; i++) axpby_kernel<<<N / BLOCK, BLOCK>>>(dx, dy, dz, 2.0f, 3.0f, N);
  MUST(cudaEventRecord(stop));
  MUST(cudaEventSynchronize(stop));
  float ms = 0.0f;
  MUST(cudaEventElapsedTime(&ms, start, stop));
  std::printf("Timing avg ms: %.6f\n", ms / REPEATS);
  std::printf("TFLOPS: %.6f\n", 3.0 * N / (ms / REPEATS) * 1e-9);
  MUST(cudaMemcpy(z.data(), dz, N * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < N; i++) {
    if (!(std::fabs(z[i] - (2.0f * x[i] + 3.0f * y[i])) <= 1e-4f)) {
      std::printf("Test FAILED: element %d is %f\n", i, z[i]);
      return 1;
    }
  }
  std::printf("Test Passed\n");
  return 0;
}
