/* The program that runs a candidate. It holds no reference and no judgement: it lays out memory,
 * launches, takes times, and hands whole outputs to whoever can judge them.
 *
 *   bench SIZES THREADS CPUS OUTPUT PROOF INPUT…
 *
 * SIZES like 512x512x512; CPUS like 3 or 0,1 or - for any; OUTPUT is the file that outputs are
 * written to, PROOF the one for proofs; each INPUT holds the operator's inputs one behind the
 * other, and is one set.
 *
 * Requests (one JSON line each on stdin, answers on descriptor 3):
 *   run   set, down, right, repeats   launch into a poisoned output, write it to OUTPUT
 *   time  launches, seed, audit       launch with contents of its own each; keep the output of
 *                                     one, and write the proofs of all to PROOF, as doubles
 *   idle  launches, seed              the same without launching
 *   count launches, seed              the same as time, with counters beside the times
 *   dump                              write the kept output to OUTPUT
 *
 * Contents and vectors of proofs are drawn when they are needed, contents before a launch and
 * vectors after it: there is no moment at which this process knows what comes next. The answer
 * tells what was drawn.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "arena.h"
#include "channel.h"
#include "cold.h"
#include "counters.h"
#include "fault.h"
#include "fresh.h"
#include "jail.h"
#include "problem.h"
#include "soil.h"

enum { SETS_MAX = 64 };

/* What a launch may not change, on pages of their own that nobody can write while a kernel runs:
 * when it began, what is evicted and looked at for it, where results go. A kernel that finds them
 * by their distance from its own data dies of writing there. */
static union {
  struct {
    uint64_t start;
    int size[SIZES], threads, output_file, proof_file, jailed, set_count;
    struct tensor inputs[INPUTS], output;
    struct buffer work[INPUTS], result, kept;
    const float *sets[SETS_MAX][INPUTS];
    double *column_weights, *column, *proof;
  };
  unsigned char pages[PAGE];
} own __attribute__((aligned(PAGE)));

/* A single thread cannot wait for anything in here, so the time that it had the processor is its
 * time; what neighbours took meanwhile is not. Several threads do wait, for each other. */
static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(own.threads > 1 ? CLOCK_MONOTONIC_RAW : CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The clock is read before the pages are closed, so that its value need not wait anywhere else: a
 * call of the kernel's is too short to matter beside a launch, and is the same for all. */
__attribute__((noinline)) static void start_clock(void) {
  own.start = now_ns();
  close_pages(&own, sizeof own, 1);
}

static uint64_t stop_clock(void) {
  const uint64_t now = now_ns();
  close_pages(&own, sizeof own, 0);
  return now - own.start;
}

static uint64_t draw(void) {
  uint64_t drawn;
  if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) give_up("random numbers");
  return drawn;
}

/* A poisoned output, and nothing of it or of the inputs in a cache when `cold` is set. */
static void set_out(int cold) {
  poison(&own.result);
  for (int i = 0; cold && i < INPUTS; ++i) evict(own.work[i].data, own.work[i].bytes);
  if (cold) evict(own.result.data, own.result.bytes);
}

static void prepare_set(const float *const *set, size_t down, size_t right) {
  for (int i = 0; i < INPUTS; ++i) {
    const struct tensor *t = &own.inputs[i];
    protect(&own.work[i], 1);
    roll(own.work[i].data, set[i], t->rows, t->cols, t->rolls_rows ? down : 0, t->rolls_cols ? right : 0);
    protect(&own.work[i], 0);
  }
  set_out(0);
}

static void prepare_content(uint64_t content, int cold) {
  for (unsigned i = 0; i < INPUTS; ++i) {
    protect(&own.work[i], 1);
    fill(own.work[i].data, own.work[i].bytes / sizeof(float), content, i);
    protect(&own.work[i], 0);
  }
  set_out(cold);
}

static void call_kernel(void) {
  float *in[INPUTS];
  for (int i = 0; i < INPUTS; ++i) in[i] = own.work[i].data;
  launch(in, own.result.data, own.size);
}

/* Adds an error to the answer if the kernel wrote beside its output; returns whether it did. */
static int has_strayed(struct answer *a) {
  const long damage = band_damage(&own.result);
  if (!damage) return 0;
  lay_bands(&own.result);
  say(a, "{\"ok\": false, \"error\": \"the kernel wrote outside its output %s: %ld bytes %s\"}", own.result.name,
      labs(damage), damage > 0 ? "behind its end" : "before its start");
  return 1;
}

static void write_at(int file, const void *from, size_t bytes, size_t at) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t wrote = pwrite(file, (const char *)from + done, bytes - done, (off_t)(at + done));
    if (wrote <= 0) give_up("writing an output");
    done += (size_t)wrote;
  }
}

static void write_output(struct answer *a, const struct buffer *from) {
  write_at(own.output_file, from->data, from->bytes, 0);
  say(a, "{\"ok\": true");
}

/* The proof of a launch that is over; `number` is its place in the file. */
static void prove(uint64_t number, uint64_t vector) {
  const size_t bytes = proof_length(own.output.rows) * sizeof *own.proof;
  weights(own.column_weights, own.output.cols, vector);
  project(own.result.data, own.output.rows, own.output.cols, own.column_weights, own.column);
  fold(own.column, own.output.rows, vector, own.proof);
  write_at(own.proof_file, own.proof, bytes, number * bytes);
}

static const float *const *set_of(const char *request) {
  const uint64_t wanted = number_of(request, "set", 0);
  if (wanted >= (uint64_t)own.set_count) give_up("no such input set");
  return own.sets[wanted];
}

static void serve_run(const char *request, struct answer *a) {
  const size_t down = number_of(request, "down", 0) % own.output.rows;
  const size_t right = number_of(request, "right", 0) % own.output.cols;
  const uint64_t repeats = number_of(request, "repeats", 1);
  uint64_t first = 0, intact = 1, repeatable = 1;
  soil_heap();
  for (uint64_t i = 0; i < repeats; ++i) {
    uint64_t before[INPUTS];
    prepare_set(set_of(request), down, right);
    for (int j = 0; j < INPUTS; ++j) before[j] = checksum(own.work[j].data, own.work[j].bytes);
    soil_stack();
    close_pages(&own, sizeof own, 1);
    call_kernel();
    close_pages(&own, sizeof own, 0);
    for (int j = 0; j < INPUTS; ++j) intact &= before[j] == checksum(own.work[j].data, own.work[j].bytes);
    if (has_strayed(a)) return;
    const uint64_t sum = checksum(own.result.data, own.result.bytes);
    if (!i) first = sum;
    repeatable &= sum == first;
  }
  write_output(a, &own.result);
  say(a, ", \"intact\": %s, \"repeatable\": %s, \"jailed\": %s}", intact ? "true" : "false",
      repeatable ? "true" : "false", own.jailed ? "true" : "false");
}

enum mode { TIME, IDLE, COUNT };

/* One launch and what was drawn for it. */
struct shot {
  uint64_t ns, drawn, vector;
};

static void tell_shots(struct answer *a, const struct shot *shots, uint64_t count) {
  static const char *const names[] = {"ns", "drawn", "vectors"};
  for (int field = 0; field < 3; ++field) {
    say(a, ", \"%s\": [", names[field]);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t values[] = {shots[i].ns, shots[i].drawn, shots[i].vector};
      say(a, "%s%llu", i ? ", " : "", (unsigned long long)values[field]);
    }
    say(a, "]");
  }
}

static void tell_counters(struct answer *a) {
  int told = 0;
  say(a, ", \"counters\": {");
  for (int i = 0; i < COUNTERS; ++i) {
    double value;
    if (read_counter(&counters[i], &value)) say(a, "%s\"%s\": %.0f", told++ ? ", " : "", counters[i].name, value);
  }
  say(a, "}");
}

static struct shot shoot(uint64_t seed, int cold, enum mode mode) {
  struct shot shot = {.drawn = draw()};
  prepare_content(mix(mix(seed) ^ shot.drawn), cold);
  if (mode == COUNT) count(1);
  start_clock();
  if (mode != IDLE) call_kernel();
  shot.ns = stop_clock();
  if (mode == COUNT) count(0);
  return shot;
}

static void serve_launches(const char *request, struct answer *a, enum mode mode) {
  const uint64_t launches = number_of(request, "launches", 1), seed = number_of(request, "seed", 0);
  const uint64_t audit = number_of(request, "audit", launches - 1);
  const int cold = !text_is(request, "l2", "hot");
  const size_t room = round_up(launches * sizeof(struct shot), PAGE);
  struct shot *shots = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (shots == MAP_FAILED) give_up("memory for times");
  for (uint64_t i = 0; i < launches; ++i) {
    close_pages(shots, room, 1); /* or a launch could better the times of those before it */
    const struct shot shot = shoot(seed + i, cold, mode);
    close_pages(shots, room, 0);
    if (has_strayed(a)) {
      munmap(shots, room);
      return;
    }
    shots[i] = shot;
    shots[i].vector = draw();
    prove(i, shots[i].vector);
    if (i == audit) memcpy(own.kept.data, own.result.data, own.result.bytes);
  }
  say(a, "{\"ok\": true");
  tell_shots(a, shots, launches);
  if (mode == COUNT) tell_counters(a);
  say(a, "}");
  munmap(shots, room);
}

static void serve(const char *request, struct answer *a) {
  if (text_is(request, "cmd", "run"))
    serve_run(request, a);
  else if (text_is(request, "cmd", "time"))
    serve_launches(request, a, TIME);
  else if (text_is(request, "cmd", "idle"))
    serve_launches(request, a, IDLE);
  else if (text_is(request, "cmd", "count"))
    serve_launches(request, a, COUNT);
  else if (text_is(request, "cmd", "dump")) {
    write_output(a, &own.kept);
    say(a, "}");
  } else
    say(a, "{\"ok\": false, \"error\": \"unknown request\"}");
}

static void map_set(const char *path) {
  size_t bytes = 0;
  for (int i = 0; i < INPUTS; ++i) bytes += bytes_of(&own.inputs[i]);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat found;
  if (file < 0 || fstat(file, &found) || (size_t)found.st_size != bytes || own.set_count == SETS_MAX) give_up(path);
  const char *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  if (at == MAP_FAILED) give_up(path);
  close(file);
  for (int i = 0; i < INPUTS; ++i) {
    own.sets[own.set_count][i] = (const float *)at;
    at += bytes_of(&own.inputs[i]);
  }
  ++own.set_count;
}

static int create(const char *path) {
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) give_up(path);
  return file;
}

static void pin(const char *cpus) {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (char *end; *cpus >= '0' && *cpus <= '9'; cpus = end + (*end == ',')) CPU_SET((int)strtol(cpus, &end, 10), &chosen);
  /* A machine that does not let us choose still gives honest, if noisier, times. */
  if (CPU_COUNT(&chosen)) sched_setaffinity(0, sizeof chosen, &chosen);
}

static void set_up(int argc, char **argv) {
  char *at = argv[1];
  for (int i = 0; i < SIZES; ++i, at += *at == 'x') own.size[i] = (int)strtol(at, &at, 10);
  own.threads = atoi(argv[2]);
  pin(argv[3]);
  describe(own.size, own.inputs, &own.output);
  for (int i = 0; i < INPUTS; ++i) {
    own.work[i] = make_buffer(own.inputs[i].name, bytes_of(&own.inputs[i]), 0);
    watched[i] = &own.work[i];
  }
  watched[INPUTS] = &own.result;
  own.result = make_buffer(own.output.name, bytes_of(&own.output), 1);
  own.kept = make_buffer("kept", bytes_of(&own.output), 0);
  lay_bands(&own.result);
  own.column_weights = calloc(own.output.cols, sizeof *own.column_weights);
  own.column = calloc(own.output.rows, sizeof *own.column);
  own.proof = calloc(proof_length(own.output.rows), sizeof *own.proof);
  if (!own.column_weights || !own.column || !own.proof) give_up("memory for proofs");
  own.output_file = create(argv[4]);
  own.proof_file = create(argv[5]);
  for (int i = 6; i < argc; ++i) map_set(argv[i]);
}

int main(int argc, char **argv) {
  static char request[REQUEST_CAP];
  struct answer answer = {NULL, 0, 0};
  if (argc < 6) return 2;
  watch_faults((char *)&answer);
  set_up(argc, argv);
  open_counters();
  setvbuf(stdin, malloc(REQUEST_CAP), _IOFBF, REQUEST_CAP); /* or stdio would ask for the file's kind */
  own.jailed = close_jail(own.threads);
  while (fgets(request, sizeof request, stdin)) {
    serve(request, &answer);
    send_answer(&answer);
  }
  return 0;
}
