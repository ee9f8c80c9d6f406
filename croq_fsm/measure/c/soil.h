/* Memory that a kernel gets without having written to it is not zero: not its part of the stack,
 * and not what malloc gives. Only while outputs are verified, where nothing is timed. */
#ifndef CROQ_SOIL_H
#define CROQ_SOIL_H

#include <alloca.h>
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>

/* As floats and doubles large negative numbers, as integers minus 16843010. */
enum { SOIL = 0xFE, SOILED_MOST = 6 << 20, STACK_SPARE = 1 << 20 };

static void soil_heap(void) {
#if defined(M_PERTURB)
  mallopt(M_PERTURB, SOIL ^ 0xFF); /* what it gives holds the complement */
#endif
}

__attribute__((noinline)) static void soil_stack(void) {
  struct rlimit stack = {0, 0};
  getrlimit(RLIMIT_STACK, &stack);
  const size_t room = stack.rlim_cur > STACK_SPARE ? stack.rlim_cur - STACK_SPARE : 0;
  const size_t bytes = room < SOILED_MOST ? room : SOILED_MOST;
  if (!bytes) return;
  char *below = alloca(bytes);
  memset(below, SOIL, bytes);
  __asm__ volatile("" ::"r"(below) : "memory"); /* nobody reads it, and it is written all the same */
}

#endif
