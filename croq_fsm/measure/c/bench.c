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

enum { SETS_MAX = 64 };

static int size[SIZES], threads, output_file, proof_file, jailed;
static struct tensor inputs[INPUTS], output;
static struct buffer work[INPUTS], result, kept;
static const float *sets[SETS_MAX][INPUTS];
static int set_count;
static double *column_weights, *column, *proof;

/* A single thread cannot wait for anything in here, so the time that it had the processor is its
 * time; what neighbours took meanwhile is not. Several threads do wait, for each other. */
static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(threads > 1 ? CLOCK_MONOTONIC_RAW : CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The time of the start is nowhere in the frames or registers of a launch, where a kernel that
 * looks around in its callers could find it and make it later. */
static uint64_t sealed, seal;

__attribute__((noinline)) static void start_clock(void) {
  sealed = now_ns() ^ seal;
}

static uint64_t stop_clock(void) {
  return now_ns() - (sealed ^ seal);
}

static uint64_t draw(void) {
  uint64_t drawn;
  if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) give_up("random numbers");
  return drawn;
}

/* A poisoned output, and nothing of it or of the inputs in a cache when `cold` is set. */
static void set_out(int cold) {
  poison(&result);
  for (int i = 0; cold && i < INPUTS; ++i) evict(work[i].data, work[i].bytes);
  if (cold) evict(result.data, result.bytes);
}

static void prepare_set(const float *const *set, size_t down, size_t right) {
  for (int i = 0; i < INPUTS; ++i) {
    const struct tensor *t = &inputs[i];
    protect(&work[i], 1);
    roll(work[i].data, set[i], t->rows, t->cols, t->rolls_rows ? down : 0, t->rolls_cols ? right : 0);
    protect(&work[i], 0);
  }
  set_out(0);
}

static void prepare_content(uint64_t content, int cold) {
  for (unsigned i = 0; i < INPUTS; ++i) {
    protect(&work[i], 1);
    fill(work[i].data, work[i].bytes / sizeof(float), content, i);
    protect(&work[i], 0);
  }
  set_out(cold);
}

static void call_kernel(void) {
  float *in[INPUTS];
  for (int i = 0; i < INPUTS; ++i) in[i] = work[i].data;
  launch(in, result.data, size);
}

/* Adds an error to the answer if the kernel wrote beside its output; returns whether it did. */
static int has_strayed(struct answer *a) {
  const long damage = band_damage(&result);
  if (!damage) return 0;
  lay_bands(&result);
  say(a, "{\"ok\": false, \"error\": \"the kernel wrote outside its output %s: %ld bytes %s\"}", result.name,
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
  write_at(output_file, from->data, from->bytes, 0);
  say(a, "{\"ok\": true");
}

/* The proof of a launch that is over; `number` is its place in the file. */
static void prove(uint64_t number, uint64_t vector) {
  const size_t bytes = proof_length(output.rows) * sizeof *proof;
  weights(column_weights, output.cols, vector);
  project(result.data, output.rows, output.cols, column_weights, column);
  fold(column, output.rows, vector, proof);
  write_at(proof_file, proof, bytes, number * bytes);
}

static const float *const *set_of(const char *request) {
  const uint64_t wanted = number_of(request, "set", 0);
  if (wanted >= (uint64_t)set_count) give_up("no such input set");
  return sets[wanted];
}

static void serve_run(const char *request, struct answer *a) {
  const size_t down = number_of(request, "down", 0) % output.rows, right = number_of(request, "right", 0) % output.cols;
  const uint64_t repeats = number_of(request, "repeats", 1);
  uint64_t first = 0, intact = 1, repeatable = 1;
  for (uint64_t i = 0; i < repeats; ++i) {
    uint64_t before[INPUTS];
    prepare_set(set_of(request), down, right);
    for (int j = 0; j < INPUTS; ++j) before[j] = checksum(work[j].data, work[j].bytes);
    call_kernel();
    for (int j = 0; j < INPUTS; ++j) intact &= before[j] == checksum(work[j].data, work[j].bytes);
    if (has_strayed(a)) return;
    const uint64_t sum = checksum(result.data, result.bytes);
    if (!i) first = sum;
    repeatable &= sum == first;
  }
  write_output(a, &result);
  say(a, ", \"intact\": %s, \"repeatable\": %s, \"jailed\": %s}", intact ? "true" : "false",
      repeatable ? "true" : "false", jailed ? "true" : "false");
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
  seal = mix(seal ^ shot.drawn); /* another one for each launch */
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
  struct shot *shots = calloc(launches, sizeof *shots);
  if (!shots) give_up("memory for times");
  for (uint64_t i = 0; i < launches; ++i) {
    shots[i] = shoot(seed + i, cold, mode);
    if (has_strayed(a)) {
      free(shots);
      return;
    }
    shots[i].vector = draw();
    prove(i, shots[i].vector);
    if (i == audit) memcpy(kept.data, result.data, result.bytes);
  }
  say(a, "{\"ok\": true");
  tell_shots(a, shots, launches);
  if (mode == COUNT) tell_counters(a);
  say(a, "}");
  free(shots);
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
    write_output(a, &kept);
    say(a, "}");
  } else
    say(a, "{\"ok\": false, \"error\": \"unknown request\"}");
}

static void map_set(const char *path) {
  size_t bytes = 0;
  for (int i = 0; i < INPUTS; ++i) bytes += bytes_of(&inputs[i]);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat found;
  if (file < 0 || fstat(file, &found) || (size_t)found.st_size != bytes || set_count == SETS_MAX) give_up(path);
  const char *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  if (at == MAP_FAILED) give_up(path);
  close(file);
  for (int i = 0; i < INPUTS; ++i) {
    sets[set_count][i] = (const float *)at;
    at += bytes_of(&inputs[i]);
  }
  ++set_count;
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
  for (int i = 0; i < SIZES; ++i, at += *at == 'x') size[i] = (int)strtol(at, &at, 10);
  threads = atoi(argv[2]);
  pin(argv[3]);
  describe(size, inputs, &output);
  for (int i = 0; i < INPUTS; ++i) watched[i] = &work[i], work[i] = make_buffer(inputs[i].name, bytes_of(&inputs[i]), 0);
  watched[INPUTS] = &result;
  result = make_buffer(output.name, bytes_of(&output), 1);
  kept = make_buffer("kept", bytes_of(&output), 0);
  lay_bands(&result);
  column_weights = calloc(output.cols, sizeof *column_weights);
  column = calloc(output.rows, sizeof *column);
  proof = calloc(proof_length(output.rows), sizeof *proof);
  if (!column_weights || !column || !proof) give_up("memory for proofs");
  output_file = create(argv[4]);
  proof_file = create(argv[5]);
  for (int i = 6; i < argc; ++i) map_set(argv[i]);
}

int main(int argc, char **argv) {
  static char request[REQUEST_CAP];
  struct answer answer = {NULL, 0, 0};
  if (argc < 6) return 2;
  watch_faults((char *)&answer);
  set_up(argc, argv);
  seal = draw();
  open_counters();
  setvbuf(stdin, malloc(REQUEST_CAP), _IOFBF, REQUEST_CAP); /* or stdio would ask for the file's kind */
  jailed = close_jail(threads);
  while (fgets(request, sizeof request, stdin)) {
    serve(request, &answer);
    send_answer(&answer);
  }
  return 0;
}
