// Exports that check the values and the widths of their arguments (all are declared with 64 bits, so
// that what stands above an int is seen), and return the code that a test wants. Who includes it
// defines VARIABLE, which has codes where a program is tested, and INVALID_ARGUMENT.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
#define EXPORT __attribute__((visibility("default")))
#define API EXPORT int

static char complaints[4096], settings[256];

// What test_set was told, or VARIABLE has: "nvmlInit_v2=9 nvmlDeviceGetPowerUsage=3".
static int wanted(const char *name, int otherwise) {
  const char *from = settings[0] ? settings : getenv(VARIABLE);
  for (size_t n = strlen(name); from && (from = strstr(from, name)); from += n)
    if (from[n] == '=') return atoi(from + n + 1);
  return otherwise;
}
static int complain(const char *call, const char *what) {
  size_t n = strlen(complaints);
  snprintf(complaints + n, sizeof complaints - n, "%s: not %s\n", call, what);
  return INVALID_ARGUMENT;
}
#define WANT(condition) do { if (!(condition)) return complain(__func__, #condition); } while (0)

// The rest of a library's state as it is at its start.
static void start(void);
EXPORT void test_set(const char *s) {
  snprintf(settings, sizeof settings, "%s", s);
  complaints[0] = 0;
  start();
}
EXPORT const char *test_complaints(void) { return complaints; }
