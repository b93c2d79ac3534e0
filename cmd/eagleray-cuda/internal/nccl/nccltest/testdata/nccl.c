// libnccl.so.2 without a GPU, for tests: the exports that the package nccl uses.
#include <limits.h>

enum { INVALID_ARGUMENT = 4, IN_PROGRESS = 7, RANKS = 2 };
#define VARIABLE "NCCL_TEST"
#include "calls.h"

static int busy;     // how often the state is still "in progress"
static int aborted;  // how often a communicator was
static void start(void) { busy = 0, aborted = 0; }

#define ENTER { int code = wanted(__func__, 0); if (code && code != IN_PROGRESS) return code; }
// A call that is not blocking takes effect at once, and says so after some looks.
#define LEAVE { if (wanted(__func__, 0) != IN_PROGRESS) return 0; \
    busy = wanted("looks", 3); return IN_PROGRESS; }

EXPORT int test_aborted(void) { return aborted; }
EXPORT const char *test_interfaces(void) {
  const char *v = getenv("NCCL_SOCKET_IFNAME");
  return v ? v : "";
}

API ncclGetVersion(int *version) {
  ENTER;
  *version = wanted("version", 22703);
  return 0;
}
EXPORT const char *ncclGetErrorString(u64 code) {
  return code == 6 ? "remote process exited or there was a network error" :
    code == 2 ? "unhandled system error (run with NCCL_DEBUG=INFO for details)" : "other error";
}
EXPORT const char *ncclGetLastError(u64 comm) {
  return comm ? "not asked for" : wanted("known", 0) ? "socket closed by 10.0.0.2\n" : "";
}

typedef struct { char internal[128]; } ncclUniqueId;
API ncclGetUniqueId(ncclUniqueId *id) {
  ENTER;
  WANT(id);
  for (int i = 0; i < 128; i++) id->internal[i] = (char)(i + 100);
  return 0;
}

typedef struct {
  size_t size;
  unsigned int magic, version;
  int blocking, cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare;
} ncclConfig_t;
static struct comm { u64 rank; } comm;
API ncclCommInitRankConfig(struct comm **to, u64 n, ncclUniqueId id, u64 rank, ncclConfig_t *c) {
  if (to) *to = NULL;
  ENTER;
  WANT(to && n == RANKS && rank < n && c);
  for (int i = 0; i < 128; i++) WANT(id.internal[i] == (char)(i + 100));
  WANT(c->size == sizeof *c && c->magic == 0xcafebeef && c->version == 21801);
  WANT(c->blocking == 0 && c->cgaClusterSize == INT_MIN && c->minCTAs == INT_MIN);
  WANT(c->maxCTAs == 8 && !c->netName && c->splitShare == INT_MIN);
  comm.rank = rank;
  *to = &comm;
  LEAVE;
}
API ncclCommGetAsyncError(struct comm *x, int *state) {
  ENTER;
  WANT(x == &comm && state);
  *state = busy > 0 ? busy--, IN_PROGRESS : wanted("state", 0);
  return 0;
}
// The other rank's numbers are this one's and 1.
API ncclAllGather(const float *src, float *dst, u64 n, u64 type, struct comm *x, u64 stream) {
  ENTER;
  WANT(src && dst && type == 7 && x == &comm && stream == 77);
  for (u64 r = 0; r < RANKS; r++)
    for (u64 i = 0; i < n; i++) dst[r * n + i] = src[i] + (r != x->rank);
  LEAVE;
}
// Within a group both ranks send, each to each. What the other one sends is what this one sends to
// itself, and 1.
static struct { int open; u64 n; const float *own; } group;
API ncclGroupStart(void) {
  ENTER;
  WANT(!group.open);
  group.open = 1, group.n = 0, group.own = NULL;
  return 0;
}
API ncclSend(const float *src, u64 n, u64 type, u64 peer, struct comm *x, u64 stream) {
  ENTER;
  WANT(group.open && src && type == 7 && peer < RANKS && x == &comm && stream == 77);
  if (peer == x->rank) group.own = src;
  group.n += n;
  return 0;
}
API ncclRecv(float *dst, u64 n, u64 type, u64 peer, struct comm *x, u64 stream) {
  ENTER;
  WANT(group.open && dst && type == 7 && peer < RANKS && x == &comm && stream == 77 && group.own);
  for (u64 i = 0; i < n; i++) dst[i] = group.own[i] + (peer != x->rank);
  return 0;
}
API ncclGroupEnd(void) {
  int open = group.open;
  group.open = 0;
  ENTER;
  WANT(open);
  LEAVE;
}
#ifndef WITHOUT_ABORT
API ncclCommAbort(struct comm *x) {
  ENTER;
  WANT(x == &comm);
  aborted++;
  return 0;
}
#endif

// Sizes and offsets that the package relies on.
EXPORT const u64 layout[] = {sizeof(ncclConfig_t), __builtin_offsetof(ncclConfig_t, netName),
                             __builtin_offsetof(ncclConfig_t, splitShare), sizeof(ncclUniqueId)};
