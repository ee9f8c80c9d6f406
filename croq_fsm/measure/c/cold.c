/* Shared object for the judge, so that the library reference starts as cold as a candidate. */
#include "cold.h"

void croq_evict(const void *data, size_t bytes) { evict(data, bytes); }
