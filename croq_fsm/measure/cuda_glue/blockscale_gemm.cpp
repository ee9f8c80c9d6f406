// Between our bench program and a CUDA C++ kernel's launcher. It is compiled apart from the kernel,
// whose macros and pragmas cannot reach it.
#include <cuda_runtime_api.h>

extern "C" int launch_blockscale_gemm(const void *lhs, const void *scale_lhs, const void *rhs, const void *scale_rhs,
                                      void *output, int m, int n, int k, cudaStream_t stream);

// The declaration is candidate.h's; the default stream is the one that the bench times.
extern "C" int croq_candidate(const void *const *inputs, void *output, const long long *sizes) {
  return launch_blockscale_gemm(inputs[0], inputs[1], inputs[2], inputs[3], output, static_cast<int>(sizes[0]),
                                static_cast<int>(sizes[1]), static_cast<int>(sizes[2]), nullptr);
}
