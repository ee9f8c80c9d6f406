/* What the object under test exports. Pointers are device memory; problem.h has the layouts. */
#ifndef CROQ_CANDIDATE_H
#define CROQ_CANDIDATE_H

/* Queue one call on the default stream. Returns a cudaError_t. `inputs` are in this order:
     matmul           lhs [m, k], rhs [n, k]
     blockscale_gemm  lhs [m, k], scale_lhs [m, k / 128], rhs [n, k], scale_rhs [n / 128, k / 128]
     gemm_sp          lhs_packed [m, k / 2], lhs_meta [m, k / 8], rhs [n, k]
   The output is [m, n]; sizes are m, n, k. */
extern "C" int croq_candidate(const void *const *inputs, void *output, const long long *sizes);

#endif
