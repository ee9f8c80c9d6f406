// Every CUDA status is looked at; a bad one ends the request with its name and place.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace croq {

inline void check(cudaError_t status, const std::string &where) {
  if (status == cudaSuccess) return;
  throw std::runtime_error("cuda: " + std::string(cudaGetErrorName(status)) + " in " + where + ": " +
                           cudaGetErrorString(status));
}

}  // namespace croq
