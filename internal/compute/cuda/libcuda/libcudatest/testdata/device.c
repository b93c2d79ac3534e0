#define _GNU_SOURCE
#include "fake.h"
#include <signal.h>

// The library's own start, and handlers of signals that lack SA_ONSTACK.
static struct sigaction former[65];
static void chained(int s, siginfo_t *info, void *context) {
  if (former[s].sa_flags & SA_SIGINFO) former[s].sa_sigaction(s, info, context);
}
static void install(int s) {
  struct sigaction a = {.sa_sigaction = chained, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct sigaction before;
  if (!s || sigaction(s, &a, &before)) return;
  if (before.sa_sigaction != chained) former[s] = before;
}

API cuInit(u64 flags) {
  ENTER(ALWAYS);
  WANT(flags == 0);
  set.initialised = 1;
  install(set.signal_at_init);
  return 0;
}
API cuDriverGetVersion(int *v) { ENTER(ALWAYS); WANT(v); *v = set.version; return 0; }

API cuGetErrorName(u64 code, const char **name) {
  LOCK;
  U32(code);
  WANT(name);
  static const struct { int code; const char *name; } names[] = {
    {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {34, "CUDA_ERROR_STUB_LIBRARY"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {218, "CUDA_ERROR_INVALID_PTX"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].code == (int)code) { *name = names[i].name; return 0; }
  return INVALID_VALUE;
}

// Devices: a whole one, a part of one, an old one, and a part of one whose name does not say so.
const struct machine machine[MAX_DEVICES] = {
      {"NVIDIA H200", "0000:3B:00.0", 9, 0, 132, 232448, 60 << 20, 150754820096},
      {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "0000:5E:00.0", 8, 0, 14, 166912, 5 << 20, 5100273664},
      {"Tesla T4", "0000:AF:00.0", 7, 5, 40, 65536, 4 << 20, 15843721216},
      {"NVIDIA H100", "0001:0A:00.0", 9, 0, 16, 232448, 6 << 20, 10368319488}};

API cuDeviceGetCount(int *n) { ENTER(INITIALISED); WANT(n); *n = set.devices; return 0; }
API cuDeviceGet(int *d, u64 ordinal) {
  ENTER(INITIALISED);
  WANT(d);
  DEVICE(ordinal);
  *d = ordinal;
  return 0;
}
static int put(char *to, u64 n, const char *text) {
  if (n <= strlen(text)) return complain("put", "room for the text");
  strcpy(to, text);
  return 0;
}
API cuDeviceGetName(char *to, u64 n, u64 d) {
  ENTER(INITIALISED);
  WANT(to); U32(n); DEVICE(d);
  return put(to, n, machine[d].name);
}
API cuDeviceGetPCIBusId(char *to, u64 n, u64 d) {
  ENTER(INITIALISED);
  WANT(to); U32(n); DEVICE(d);
  return put(to, n, machine[d].pci);
}
API cuDeviceTotalMem_v2(u64 *bytes, u64 d) {
  ENTER(INITIALISED);
  WANT(bytes); DEVICE(d);
  *bytes = machine[d].bytes;
  return 0;
}
typedef struct { char bytes[16]; } CUuuid;
EXPORT const u64 layout_types[] = {sizeof(int), sizeof(void *), sizeof(size_t)};
EXPORT const u64 layout_uuid[] = {sizeof(CUuuid)};
static void uuid(CUuuid *u, int first) { for (int i = 0; i < 16; i++) u->bytes[i] = first + i; }
#ifndef WITHOUT_OLD
API cuDeviceGetUuid(CUuuid *u, u64 d) {
  ENTER(INITIALISED);
  WANT(u); DEVICE(d);
  uuid(u, 0xe0 + d);
  return 0;
}
#endif
#ifndef WITHOUT_NEW
API cuDeviceGetUuid_v2(CUuuid *u, u64 d) {
  ENTER(INITIALISED);
  WANT(u); DEVICE(d);
  uuid(u, d % 2 ? 0x10 * d : 0xe0 + d);
  return 0;
}
#endif
API cuDeviceGetAttribute(int *to, u64 which, u64 d) {
  ENTER(INITIALISED);
  WANT(to); U32(which); DEVICE(d);
  switch (which) {
  case 16: *to = machine[d].sms; return 0;
  case 38: *to = machine[d].l2; return 0;
  case 75: *to = machine[d].major; return 0;
  case 76: *to = machine[d].minor; return 0;
  case 97: *to = machine[d].shared; return 0;
  }
  return INVALID_VALUE;
}

// Devices reach each other, unless "apart" is set.
API cuDeviceCanAccessPeer(int *to, u64 d, u64 other) {
  ENTER(INITIALISED);
  WANT(to); DEVICE(d); DEVICE(other);
  *to = d != other && !set.apart;
  return 0;
}

// Contexts.
static struct object *primary(u64 d) {
  struct object *o = objects;
  while (o && !(o->kind == CONTEXT && o->device == (int)d)) o = o->next;
  return o;
}
API cuDevicePrimaryCtxSetFlags_v2(u64 d, u64 flags) {
  ENTER(INITIALISED);
  DEVICE(d);
  WANT(flags == 4);
  if (primary(d) || set.context_active) return 708;
  flagged[d] = 1;
  return 0;
}
API cuDevicePrimaryCtxRetain(struct object **c, u64 d) {
  ENTER(INITIALISED);
  WANT(c); DEVICE(d);
  WANT(flagged[d] || set.context_active);
  struct object *o = primary(d);
  if (!o) o = make(CONTEXT, 0);
  o->device = d, o->uses++;
  install(set.signal_at_retain);
  *c = o;
  return 0;
}
API cuDevicePrimaryCtxRelease_v2(u64 d) {
  ENTER(INITIALISED);
  DEVICE(d);
  struct object *o = primary(d);
  if (!o) return INVALID_CONTEXT;
  if (--o->uses == 0) destroy(o);
  return 0;
}
API cuCtxSetCurrent(u64 c) {
  ENTER(INITIALISED);
  if (c && !find(c, CONTEXT)) return INVALID_CONTEXT;
  current = (struct object *)c;
  return 0;
}
API cuCtxSynchronize(void) { ENTER(IN_CONTEXT); return 0; }
