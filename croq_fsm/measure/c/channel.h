/* The conversation: requests are JSON lines on stdin that our own parent wrote, answers are JSON
 * lines on descriptor 3. Requests are flat, so looking for a key is all the parsing they need. */
#ifndef CROQ_CHANNEL_H
#define CROQ_CHANNEL_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWERS = 3, REQUEST_CAP = 4096 };

struct answer {
  char *text;
  size_t length, room;
};

static const char *value_of(const char *request, const char *key) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\"", key);
  const char *at = strstr(request, quoted);
  if (!at) return NULL;
  at += strlen(quoted);
  return at + strspn(at, " :");
}

static uint64_t number_of(const char *request, const char *key, uint64_t otherwise) {
  const char *at = value_of(request, key);
  return at ? strtoull(at, NULL, 10) : otherwise;
}

static int text_is(const char *request, const char *key, const char *wanted) {
  const char *at = value_of(request, key);
  const size_t length = strlen(wanted);
  return at && at[0] == '"' && !strncmp(at + 1, wanted, length) && at[length + 1] == '"';
}

static void say(struct answer *a, const char *format, ...) {
  va_list arguments;
  if (a->room - a->length < 512) {
    a->room = a->room * 2 + 4096;
    a->text = realloc(a->text, a->room);
    if (!a->text) exit(3);
  }
  va_start(arguments, format);
  a->length += (size_t)vsnprintf(a->text + a->length, a->room - a->length, format, arguments);
  va_end(arguments);
}

static void send_answer(struct answer *a) {
  say(a, "\n");
  for (size_t done = 0; done < a->length;) {
    const ssize_t wrote = write(ANSWERS, a->text + done, a->length - done);
    if (wrote <= 0) _exit(2);
    done += (size_t)wrote;
  }
  a->length = 0;
}

#endif
