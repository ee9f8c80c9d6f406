/* Memory that notices. Every buffer lies between moats that may not be touched at all, wide
 * enough that an index gone wrong does not land in the next buffer. The output also lies between
 * bands of a known pattern, and is full of a NaN that no arithmetic makes before the kernel runs;
 * the inputs cannot be written while it runs. */
#ifndef CROQ_ARENA_H
#define CROQ_ARENA_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 1 << 16, BAND = PAGE, LINE = 64 }; /* 64 KiB is a multiple of every page size */
enum { MOAT = 16 << 20 };                        /* takes addresses, no memory */
static const unsigned char BAND_BYTE = 0xA5;
static const uint32_t POISON = 0x7FA5C3E1u; /* a signalling NaN with a payload of our own */

struct buffer {
  const char *name;
  unsigned char *map; /* moat, body, moat */
  size_t body;        /* bytes between the moats */
  float *data;
  size_t bytes;
  size_t front, back; /* bytes of the bands */
};

static void give_up(const char *what) {
  perror(what);
  exit(3);
}

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

/* The data ends right before the moat (or the band), up to a cache line. */
static struct buffer make_buffer(const char *name, size_t bytes, int banded) {
  struct buffer b = {.name = name, .bytes = bytes};
  const size_t lines = round_up(bytes, LINE), band = banded ? BAND : 0;
  b.body = round_up(lines, PAGE) + 2 * band;
  b.map = mmap(NULL, b.body + 2 * MOAT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b.map == MAP_FAILED) give_up("mmap");
  if (mprotect(b.map + MOAT, b.body, PROT_READ | PROT_WRITE)) give_up("mprotect");
  b.data = (float *)(b.map + MOAT + b.body - band - lines);
  b.front = (size_t)((unsigned char *)b.data - (b.map + MOAT));
  b.back = b.body - b.front - bytes;
  return b;
}

static void protect(const struct buffer *b, int writable) {
  if (mprotect(b->map + MOAT, b->body, writable ? PROT_READ | PROT_WRITE : PROT_READ))
    give_up("mprotect");
}

/* Whole pages that the harness keeps for itself: closed, they can only be read. */
static void close_pages(void *first, size_t bytes, int closed) {
  if (mprotect(first, bytes, closed ? PROT_READ : PROT_READ | PROT_WRITE)) give_up("mprotect");
}

static void lay_bands(const struct buffer *b) {
  memset(b->map + MOAT, BAND_BYTE, b->front);
  memset((unsigned char *)b->data + b->bytes, BAND_BYTE, b->back);
}

static int is_whole(const unsigned char *band, size_t bytes) {
  return !bytes || (band[0] == BAND_BYTE && !memcmp(band, band + 1, bytes - 1));
}

/* Distance in bytes of the nearest damage: negative before the data, positive behind it. */
static long band_damage(const struct buffer *b) {
  const unsigned char *first = b->map + MOAT, *last = (unsigned char *)b->data + b->bytes;
  if (is_whole(first, b->front) && is_whole(last, b->back)) return 0;
  const unsigned char *before = (unsigned char *)b->data, *behind = before + b->bytes;
  for (size_t i = 0; i < b->back; ++i)
    if (behind[i] != BAND_BYTE) return (long)i + 1;
  for (size_t i = 1; i <= b->front; ++i)
    if (before[-(long)i] != BAND_BYTE) return -(long)i;
  return 0;
}

static void poison(const struct buffer *b) {
  uint32_t *word = (uint32_t *)b->data;
  for (size_t i = 0; i < b->bytes / sizeof *word; ++i) word[i] = POISON;
}

static uint64_t checksum(const void *data, size_t bytes) {
  const uint32_t *word = data;
  uint64_t sum = 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i < bytes / sizeof *word; ++i) sum = (sum ^ word[i]) * 0x100000001B3u;
  return sum;
}

/* dst[i, j] = src[i - down, j - right], indices modulo the shape. */
static void roll(float *dst, const float *src, size_t rows, size_t cols, size_t down, size_t right) {
  for (size_t i = 0; i < rows; ++i) {
    const float *from = src + i * cols;
    float *to = dst + (i + down) % rows * cols;
    memcpy(to + right, from, (cols - right) * sizeof *to);
    memcpy(to, from + (cols - right), right * sizeof *to);
  }
}

#endif
