/* Hardware counters around the kernel alone, where the machine has them and lets us read them. A
 * counter that cannot be opened is absent. Opened before the jail closes. */
#ifndef CROQ_COUNTERS_H
#define CROQ_COUNTERS_H

#include <linux/perf_event.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct counter {
  const char *name;
  uint32_t type;
  uint64_t config;
  int fd;
};

static struct counter counters[] = {
    {"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, -1},
    {"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS, -1},
    {"cache-references", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_REFERENCES, -1},
    {"cache-misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, -1},
    {"branch-misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_BRANCH_MISSES, -1},
    {"page-faults", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, -1},
    {"context-switches", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CONTEXT_SWITCHES, -1},
};
enum { COUNTERS = sizeof counters / sizeof *counters };

static void open_counters(void) {
  for (int i = 0; i < COUNTERS; ++i) {
    struct perf_event_attr what;
    memset(&what, 0, sizeof what);
    what.size = sizeof what;
    what.type = counters[i].type;
    what.config = counters[i].config;
    what.disabled = 1;
    what.inherit = 1; /* threads that the kernel starts count, too */
    what.exclude_hv = 1;
    what.exclude_kernel = what.type == PERF_TYPE_HARDWARE;
    what.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    counters[i].fd = (int)syscall(SYS_perf_event_open, &what, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
  }
}

static void count(int on) {
  for (int i = 0; i < COUNTERS; ++i)
    if (counters[i].fd >= 0) ioctl(counters[i].fd, on ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, 0);
}

/* Whether the counter has a value; one that shared its register with others is scaled up. */
static int read_counter(const struct counter *c, double *value) {
  uint64_t raw[3] = {0, 0, 0}; /* count, time enabled, time running */
  if (c->fd < 0 || read(c->fd, raw, sizeof raw) != sizeof raw || !raw[2]) return 0;
  *value = (double)raw[0] * ((double)raw[1] / (double)raw[2]);
  return 1;
}

#endif
