/* Runs a kernel that was built with sanitizers, on operands that lie on the heap, exactly as long
 * as they are: whatever is touched beside them is reported by the sanitizer, and so is arithmetic
 * that means nothing. Says "done" on descriptor 1 when nothing was.
 *
 *   sanitize SIZES CONTENT */
#include <stdio.h>
#include <stdlib.h>

#include "fresh.h"
#include "problem.h"

enum { LAUNCHES = 2 }; /* the second finds what the first has left behind */

int main(int argc, char **argv) {
  static int size[SIZES];
  struct tensor inputs[INPUTS], output;
  float *operands[INPUTS], *result;
  if (argc != 3) return 2;
  char *at = argv[1];
  for (int i = 0; i < SIZES; ++i, at += *at == 'x') size[i] = (int)strtol(at, &at, 10);
  describe(size, inputs, &output);
  for (int i = 0; i < LAUNCHES; ++i) {
    const uint64_t content = strtoull(argv[2], NULL, 10) + (uint64_t)i;
    for (unsigned j = 0; j < INPUTS; ++j) {
      operands[j] = malloc(bytes_of(&inputs[j]));
      if (!operands[j]) return 3;
      fill(operands[j], bytes_of(&inputs[j]) / sizeof(float), content, j);
    }
    result = malloc(bytes_of(&output));
    if (!result) return 3;
    launch(operands, result, size);
    for (int j = 0; j < INPUTS; ++j) free(operands[j]);
    free(result);
  }
  return puts("done") < 0;
}
