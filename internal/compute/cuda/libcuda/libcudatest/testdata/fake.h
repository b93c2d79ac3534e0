// What the parts of the library share: what exists, and what tests set and read.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
#define EXPORT __attribute__((visibility("default")))
#define API EXPORT int

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500 };
enum { MAX_DEVICES = 4, MAX_OPS = 16, LOG_BYTES = 16 << 10 };

struct settings {
  long version, devices, lost, initialised, last_bytes, last_threads, signal_at_init,
      signal_at_retain, context_active, apart, foreign;
};
extern struct settings set;
extern unsigned char last_params[64];
extern int flagged[MAX_DEVICES];
struct machine { const char *name, *pci; int major, minor, sms, shared, l2; u64 bytes; };
extern const struct machine machine[MAX_DEVICES];

// What exists.
enum kind { CONTEXT, MEMORY, PINNED, MODULE, FUNCTION, STREAM, EVENT, GRAPH, EXEC, IMPORTED };
enum { COPY, FILL, ADD, NOTHING };
struct add { u64 dst, n; uint32_t value; float scale; }; // the parameter of the kernel add
struct op { int what; u64 dst, src, n; unsigned value; unsigned char params[sizeof(struct add)]; };
struct object {
  enum kind kind;
  struct object *next, *owner;
  u64 address, bytes;     // of memory
  char name[40];          // of a function
  u64 dynamic;            // shared memory that a function may have
  int capturing;          // a stream
  pthread_t thread;       // that captures
  struct op ops[MAX_OPS]; // of a stream that is captured, and a graph
  int count, uses, device;
};
extern struct object *objects;
extern __thread struct object *current;
struct object *make(enum kind kind, struct object *owner);
struct object *map_bytes(enum kind kind, u64 n);
struct object *find(u64 handle, enum kind kind);
struct object *memory_at(u64 address, u64 bytes, enum kind kind);
void destroy(struct object *o);
int destroy_handle(u64 handle, enum kind kind);
int enqueue(u64 stream, struct op o);
void run(const struct op *o);

// What each export begins with. The states are what it needs.
enum { ALWAYS, INITIALISED, IN_CONTEXT };
int lock(void);
void leave(int *unused);
int enter(const char *name, int state);
#define LOCK __attribute__((cleanup(leave))) int locked = lock(); (void)locked
#define ENTER(state) LOCK; { int code = enter(__func__, state); if (code) return code; }

// What it wants of its arguments.
int complain(const char *call, const char *what);
#define WANT(condition) do { if (!(condition)) return complain(__func__, #condition); } while (0)
#define U32(x) WANT((x) >> 32 == 0)
#define DEVICE(d) do { U32(d); if ((long)(d) >= set.devices) return 101; } while (0)
