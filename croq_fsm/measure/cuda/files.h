// Whole outputs travel between the two programs through a file that the parent names.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_check.h"

namespace croq {

// Copy device memory into a new file; an existing one is an error, never overwritten.
inline void write_output(const std::string &path, const void *device, size_t bytes) {
  std::vector<char> host(bytes);
  check(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost), "fetch the output");
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd == -1) throw std::runtime_error("cannot create the output file " + path);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t wrote = write(fd, host.data() + done, bytes - done);
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  if (close(fd) != 0 || done != bytes) throw std::runtime_error("cannot write the output file " + path);
}

// Read a file of exactly `bytes` into device memory.
inline void read_output(const std::string &path, void *device, size_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat status{};
  if (fd == -1 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || static_cast<size_t>(status.st_size) != bytes) {
    if (fd != -1) close(fd);
    throw std::runtime_error("the output file is missing or has the wrong size: " + path);
  }
  std::vector<char> host(bytes);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = read(fd, host.data() + done, bytes - done);
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  close(fd);
  if (done != bytes) throw std::runtime_error("the output file cannot be read: " + path);
  check(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice), "upload the output");
}

}  // namespace croq
