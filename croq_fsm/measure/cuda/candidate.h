/* What the object under test exports. Pointers are device memory; see the operator for layouts. */
#ifndef CROQ_CANDIDATE_H
#define CROQ_CANDIDATE_H

/* Queue one call on the default stream. Returns a cudaError_t. matmul: inputs are lhs [m, k] and
   rhs [n, k], output is [m, n], sizes are m, n, k. */
extern "C" int croq_candidate(const void *const *inputs, void *output, const long long *sizes);

#endif
