// The one driver function that a candidate's wrapper calls, fetched at run time: neither the
// candidate nor this program links with the driver, so both can be built where there is none.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

namespace croq {

inline void *driver_function(const char *name) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  return result == cudaDriverEntryPointSuccess ? found : nullptr;
}

}  // namespace croq

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                           const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                           const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                           CUtensorMapFloatOOBfill fill) {
  static const auto real =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(croq::driver_function("cuTensorMapEncodeTiled"));
  if (!real) return CUDA_ERROR_NOT_SUPPORTED;
  return real(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill);
}
