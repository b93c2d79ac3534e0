// libnvidia-ml.so.1 without a GPU, for tests: the exports that the package nvml uses.
enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
#define VARIABLE "NVML_TEST"
#include "calls.h"

static int initialised;
static void start(void) { initialised = 0; }
#define ENTER { int code = wanted(__func__, 0); if (code) return code; \
    if (!initialised) return UNINITIALIZED; }

// A whole GPU, and a part of one, which has memory alone.
static const struct gpu { const char *uuid; int part; } gpus[] = {
  {"GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebecedeeef", 0},
  {"MIG-10111213-1415-1617-1819-1a1b1c1d1e1f", 1}};
#define GPU(d) WANT((d) == (u64)&gpus[0] || (d) == (u64)&gpus[1])
#define WHOLE(d) GPU(d); if (((const struct gpu *)(d))->part) return NOT_SUPPORTED

API nvmlInit_v2(void) {
  int code = wanted(__func__, 0);
  initialised = !code;
  return code;
}
EXPORT const char *nvmlErrorString(u64 code) {
  return code == 9 ? "Driver Not Loaded" : code == NOT_FOUND ? "Not Found" : "Unknown Error";
}
API nvmlSystemGetDriverVersion(char *to, u64 n) {
  ENTER;
  WANT(to && n == 80);
  strcpy(to, "570.86.15");
  return 0;
}
API nvmlDeviceGetHandleByUUID(const char *uuid, u64 *device) {
  ENTER;
  WANT(uuid && device);
  for (int i = 0; i < 2; i++)
    if (!strcmp(uuid, gpus[i].uuid)) { *device = (u64)&gpus[i]; return 0; }
  return NOT_FOUND;
}
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
API nvmlDeviceGetMemoryInfo(u64 d, nvmlMemory_t *m) {
  ENTER;
  GPU(d);
  WANT(m);
  *m = (nvmlMemory_t){150754820096, 100754820096, 50000000000};
  return 0;
}
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
API nvmlDeviceGetUtilizationRates(u64 d, nvmlUtilization_t *u) {
  ENTER;
  WHOLE(d);
  WANT(u);
  *u = (nvmlUtilization_t){97, 41};
  return 0;
}
API nvmlDeviceGetClockInfo(u64 d, u64 type, unsigned int *mhz) {
  ENTER;
  WHOLE(d);
  WANT((type == 1 || type == 2) && mhz);
  *mhz = type == 1 ? 1980 : 3201;
  return 0;
}
API nvmlDeviceGetPowerUsage(u64 d, unsigned int *milliwatts) {
  ENTER;
  WHOLE(d);
  WANT(milliwatts);
  *milliwatts = 687500;
  return 0;
}
API nvmlDeviceGetTemperature(u64 d, u64 sensor, unsigned int *celsius) {
  ENTER;
  WHOLE(d);
  WANT(sensor == 0 && celsius);
  *celsius = 64;
  return 0;
}
#ifndef WITHOUT_REASONS
API nvmlDeviceGetCurrentClocksThrottleReasons(u64 d, unsigned long long *bits) {
  ENTER;
  WHOLE(d);
  WANT(bits);
  *bits = 0x24;
  return 0;
}
#endif
API nvmlDeviceGetTotalEccErrors(u64 d, u64 error, u64 counter, unsigned long long *count) {
  ENTER;
  WHOLE(d);
  WANT(error <= 1 && counter == 0 && count);
  *count = error ? 2 : 5000000000;
  return 0;
}

// Sizes and offsets that the package relies on.
EXPORT const u64 layout[] = {sizeof(nvmlMemory_t), __builtin_offsetof(nvmlMemory_t, free),
                             __builtin_offsetof(nvmlMemory_t, used), sizeof(nvmlUtilization_t),
                             __builtin_offsetof(nvmlUtilization_t, memory)};
