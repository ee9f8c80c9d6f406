/* Putting data out of every cache, so that a launch begins with cold operands. */
#ifndef CROQ_COLD_H
#define CROQ_COLD_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHORTEST_LINE = 64, SWEEP_CAP = 128 << 20 };

#if defined(__x86_64__)
#include <cpuid.h>

static int has_clflushopt(void) {
  static int known = -1;
  unsigned a, b, c, d;
  if (known < 0) known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1);
  return known;
}

static void evict(const void *data, size_t bytes) {
  const char *p = data;
  const int quick = has_clflushopt(); /* the older one waits for each line */
  for (size_t i = 0; i < bytes; i += SHORTEST_LINE) {
    if (quick)
      __asm__ volatile("clflushopt %0" ::"m"(p[i]) : "memory");
    else
      __asm__ volatile("clflush %0" ::"m"(p[i]) : "memory");
  }
  __asm__ volatile("mfence" ::: "memory");
}
#elif defined(__aarch64__)
static void evict(const void *data, size_t bytes) {
  uint64_t type;
  __asm__("mrs %0, ctr_el0" : "=r"(type));
  const size_t line = (size_t)4 << (type >> 16 & 15);
  for (const char *p = data, *end = p + bytes; p < end; p += line)
    __asm__ volatile("dc civac, %0" ::"r"(p) : "memory");
  __asm__ volatile("dsb ish" ::: "memory");
}
#else
/* No instruction for it: read and write twice the largest cache, which pushes the rest out. */
static void evict(const void *data, size_t bytes) {
  static volatile char *sweep;
  static size_t size;
  (void)data, (void)bytes;
  if (!sweep) {
    const long llc = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size = llc > 0 && 2 * llc < SWEEP_CAP ? 2 * (size_t)llc : SWEEP_CAP;
    sweep = calloc(size, 1);
  }
  for (size_t i = 0; sweep && i < size; i += SHORTEST_LINE) ++sweep[i];
}
#endif

#endif
