// libcuda.so.1 without a GPU, for tests: the exports that the package libcuda uses. Each checks the
// values and the widths of its arguments (all are declared with 64 bits, so that what stands above
// an int is seen), counts its calls and what it makes, and returns the code that a test wants.
// Device memory is memory of the host, and a stream does at once what is enqueued.
#define _GNU_SOURCE
#include "fake.h"
#include <stdio.h>
#include <sys/mman.h>

struct settings set;
unsigned char last_params[64];
int flagged[MAX_DEVICES];
struct object *objects;
__thread struct object *current;

static struct { char name[40]; int code; long times, calls; } entries[64];
static char complaints[4096], released[4096];
static const char *kinds[] = {"context", "memory", "pinned", "module", "function", "stream",
                              "event", "graph", "exec", "imported"};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
int lock(void) { pthread_mutex_lock(&mutex); return 0; }
void leave(int *unused) { (void)unused; pthread_mutex_unlock(&mutex); }

static int index_of(const char *name) {
  for (int i = 0; i < 64; i++) {
    if (!strcmp(entries[i].name, name)) return i;
    if (!entries[i].name[0]) { snprintf(entries[i].name, 40, "%s", name); return i; }
  }
  abort();
}

int complain(const char *call, const char *what) {
  size_t n = strlen(complaints);
  snprintf(complaints + n, sizeof complaints - n, "%s: not %s\n", call, what);
  return INVALID_VALUE;
}

static int sticky(int code) {
  return code == 214 || code == 220 || code == 700 || code == 702 || code == 709 || code == 710 ||
         (code >= 714 && code <= 719) || code == 999;
}

int enter(const char *name, int state) {
  int i = index_of(name);
  entries[i].calls++;
  if (entries[i].code && entries[i].times) {
    if (entries[i].times > 0) entries[i].times--;
    if (state == IN_CONTEXT && sticky(entries[i].code)) set.lost = entries[i].code;
    return entries[i].code;
  }
  if (state >= INITIALISED && !set.initialised) return NOT_INITIALIZED;
  if (state == IN_CONTEXT && set.lost) return set.lost;
  if (state == IN_CONTEXT && !current) return INVALID_CONTEXT;
  return 0;
}

struct object *make(enum kind kind, struct object *owner) {
  struct object *o = calloc(1, sizeof *o);
  o->kind = kind, o->owner = owner, o->next = objects, o->dynamic = 48 << 10;
  return objects = o;
}
struct object *find(u64 handle, enum kind kind) {
  struct object *o = objects;
  while (o && !((u64)o == handle && o->kind == kind)) o = o->next;
  return o;
}
struct object *memory_at(u64 address, u64 bytes, enum kind kind) {
  struct object *o = objects;
  while (o && !(o->kind == kind && o->address <= address &&
                address + bytes <= o->address + o->bytes)) o = o->next;
  return o;
}
void destroy(struct object *o) {
  for (struct object *f = objects, *next; f; f = next) {
    next = f->next;
    if (f->owner == o) { destroy(f); next = objects; }
  }
  for (struct object **p = &objects; *p; p = &(*p)->next)
    if (*p == o) { *p = o->next; break; }
  if (o->kind != FUNCTION) {
    strcat(released, kinds[o->kind]);
    strcat(released, " ");
  }
  if (o->address) munmap((void *)o->address, o->bytes);
  free(o);
}
int destroy_handle(u64 handle, enum kind kind) {
  struct object *o = find(handle, kind);
  if (!o) return INVALID_HANDLE;
  destroy(o);
  return 0;
}
struct object *map_bytes(enum kind kind, u64 n) {
  void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return 0;
  struct object *o = make(kind, 0);
  o->address = (u64)p, o->bytes = n;
  return o;
}

// The test's side.
static const struct { const char *name; long *value; } values[] = {
  {"version", &set.version}, {"devices", &set.devices}, {"last_bytes", &set.last_bytes},
  {"last_threads", &set.last_threads}, {"signal_at_init", &set.signal_at_init},
  {"signal_at_retain", &set.signal_at_retain}, {"context_active", &set.context_active},
  {"apart", &set.apart}, {"foreign", &set.foreign}};
EXPORT void test_set(const char *name, long value) {
  LOCK;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    if (!strcmp(values[i].name, name)) *values[i].value = value;
}
EXPORT long test_get(const char *name) {
  LOCK;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    if (!strcmp(values[i].name, name)) return *values[i].value;
  return -1;
}
// times: how often the code is returned, -1 for always.
EXPORT void test_fail(const char *name, long code, long times) {
  LOCK;
  int i = index_of(name);
  entries[i].code = code, entries[i].times = times;
}
EXPORT long test_calls(const char *name) { LOCK; return entries[index_of(name)].calls; }
EXPORT long test_live(void) {
  LOCK;
  long n = 0;
  for (struct object *o = objects; o; o = o->next) n++;
  return n;
}
EXPORT const char *test_complaints(void) { return complaints; }
EXPORT const char *test_released(void) { return released; }
EXPORT const unsigned char *test_params(void) { return last_params; }
EXPORT void test_reset(void) {
  LOCK;
  while (objects) destroy(objects);
  memset(entries, 0, sizeof entries);
  memset(flagged, 0, sizeof flagged);
  memset(last_params, 0, sizeof last_params);
  complaints[0] = released[0] = 0;
  set = (struct settings){.version = 12090, .devices = 2};
}
// LIBCUDA_TEST="cuInit=100 devices=1" is for a process without a test in it.
__attribute__((constructor)) static void start(void) {
  test_reset();
  const char *settings = getenv("LIBCUDA_TEST");
  char *copy = strdup(settings ? settings : "");
  for (char *word = strtok(copy, " "); word; word = strtok(0, " ")) {
    char *value = strchr(word, '=');
    if (!value) continue;
    *value++ = 0;
    if (!strncmp(word, "cu", 2)) test_fail(word, atol(value), -1);
    else test_set(word, atol(value));
  }
  free(copy);
}
