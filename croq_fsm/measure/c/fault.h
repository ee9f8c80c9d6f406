/* Saying where a kernel went wrong before it dies of it. The text goes to stderr; the signal is
 * then raised again, so that the parent sees the death itself and need not believe the text. */
#ifndef CROQ_FAULT_H
#define CROQ_FAULT_H

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include "arena.h"

enum { WATCHED_MAX = 8, STACK_REACH = 1 << 20 };
static const struct buffer *watched[WATCHED_MAX];
static const char *stack_base;

static const char *access_of(const void *context) {
#if defined(__x86_64__)
  return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
  (void)context;
  return "access";
#endif
}

static void print_error(const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (write(2, text, (size_t)length) < 0) _exit(2);
}

/* Names the place if it lies in or around one of our buffers. */
static int explain(const char *at, const void *context) {
  for (int i = 0; i < WATCHED_MAX && watched[i]; ++i) {
    const struct buffer *b = watched[i];
    const char *start = (const char *)b->data, *end = start + b->bytes;
    if (at < (const char *)b->map || at >= (const char *)b->map + b->body + 2 * MOAT) continue;
    if (at >= end)
      print_error("%s %ld bytes behind the end of %s\n", access_of(context), (long)(at - end), b->name);
    else if (at < start)
      print_error("%s %ld bytes before the start of %s\n", access_of(context), (long)(start - at), b->name);
    else
      print_error("%s to the input %s, which is read-only\n", access_of(context), b->name);
    return 1;
  }
  return 0;
}

static void on_fault(int number, siginfo_t *info, void *context) {
  const char *at = info->si_addr;
  signal(number, SIG_DFL);
  if (number == SIGSEGV && !explain(at, context)) {
    struct rlimit stack = {0, 0};
    getrlimit(RLIMIT_STACK, &stack);
    if (at < stack_base && (size_t)(stack_base - at) < stack.rlim_cur + STACK_REACH)
      print_error("the stack of %ld KiB is exhausted\n", (long)(stack.rlim_cur >> 10));
    else
      print_error("%s at address %p, outside every operand\n", access_of(context), (const void *)at);
  }
  raise(number);
}

static void watch_faults(const char *stack) {
  static char spare[1 << 16];
  stack_t other = {.ss_sp = spare, .ss_size = sizeof spare};
  sigaltstack(&other, NULL);
  stack_base = stack;
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) sigaction(numbers[i], &action, NULL);
}

#endif
