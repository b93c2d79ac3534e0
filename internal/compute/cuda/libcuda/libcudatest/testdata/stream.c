#include "fake.h"

// Memory.
static u64 used(void) {
  u64 n = 0;
  for (struct object *o = objects; o; o = o->next) if (o->kind == MEMORY) n += o->bytes;
  return n;
}
API cuMemGetInfo_v2(u64 *free, u64 *total) {
  ENTER(IN_CONTEXT);
  WANT(free && total);
  *total = machine[current->device].bytes, *free = *total - used();
  return 0;
}
API cuMemAlloc_v2(u64 *p, u64 n) {
  ENTER(IN_CONTEXT);
  WANT(p);
  if (!n) return INVALID_VALUE;
  if (n > machine[current->device].bytes - used()) return OUT_OF_MEMORY;
  struct object *o = map_bytes(MEMORY, n);
  if (!o) return OUT_OF_MEMORY;
  *p = o->address, set.last_bytes = n;
  return 0;
}
static int unmap(u64 p, enum kind kind) {
  struct object *o = memory_at(p, 0, kind);
  if (!o || o->address != p) return INVALID_VALUE;
  destroy(o);
  return 0;
}
API cuMemFree_v2(u64 p) { ENTER(IN_CONTEXT); return unmap(p, MEMORY); }
API cuMemHostAlloc(u64 *p, u64 n, u64 flags) {
  ENTER(IN_CONTEXT);
  WANT(p);
  WANT(flags == 3);
  struct object *o = map_bytes(PINNED, n);
  if (!o) return OUT_OF_MEMORY;
  *p = o->address;
  return 0;
}
API cuMemFreeHost(u64 p) { ENTER(IN_CONTEXT); return unmap(p, PINNED); }

// Memory of other processes. A handle has an address, a size, and 48 bytes that no one writes; with
// "foreign" set those of this process count as another's.
typedef struct { u64 address, bytes; char rest[48]; } CUipcMemHandle;
EXPORT const u64 layout_handle[] = {sizeof(CUipcMemHandle)};
API cuIpcGetMemHandle(CUipcMemHandle *h, u64 p) {
  ENTER(IN_CONTEXT);
  WANT(h);
  struct object *o = memory_at(p, 0, MEMORY);
  if (!o || o->address != p) return INVALID_VALUE;
  h->address = p, h->bytes = o->bytes;
  for (int i = 0; i < 48; i++) h->rest[i] = 3 * i + 1;
  return 0;
}
API cuIpcOpenMemHandle_v2(u64 *p, CUipcMemHandle h, u64 flags) {
  ENTER(IN_CONTEXT);
  WANT(p);
  WANT(flags == 1);
  for (int i = 0; i < 48; i++) WANT(h.rest[i] == (char)(3 * i + 1));
  if (!set.foreign) return INVALID_CONTEXT;
  if (set.apart) return 217;
  struct object *o = memory_at(h.address, h.bytes, MEMORY);
  if (!o) return INVALID_HANDLE;
  o = map_bytes(IMPORTED, h.bytes);
  *p = o->address;
  return 0;
}
API cuIpcCloseMemHandle(u64 p) { ENTER(IN_CONTEXT); return unmap(p, IMPORTED); }

// Streams.
EXPORT const u64 layout_add[] = {sizeof(struct add), __builtin_offsetof(struct add, n),
                                 __builtin_offsetof(struct add, value),
                                 __builtin_offsetof(struct add, scale)};
void run(const struct op *o) {
  if (o->n >> 32) return; // too long for a test: that the size arrived is what is looked at
  if (o->what == COPY) memcpy((void *)o->dst, (void *)o->src, o->n);
  if (o->what == FILL) memset((void *)o->dst, o->value, o->n);
  if (o->what == ADD) {
    struct add a;
    memcpy(&a, o->params, sizeof a);
    for (u64 i = 0; i < a.n; i++) ((unsigned char *)a.dst)[i] += a.value * a.scale;
  }
}
int enqueue(u64 stream, struct op o) {
  struct object *s = find(stream, STREAM);
  if (!s) return INVALID_HANDLE;
  set.last_bytes = o.n;
  if (!s->capturing) { run(&o); return 0; }
  if (s->count == MAX_OPS) return OUT_OF_MEMORY;
  s->ops[s->count++] = o;
  return 0;
}
API cuStreamCreate(struct object **s, u64 flags) {
  ENTER(IN_CONTEXT);
  WANT(s);
  WANT(flags == 1);
  *s = make(STREAM, 0);
  return 0;
}
API cuStreamDestroy_v2(u64 s) { ENTER(IN_CONTEXT); return destroy_handle(s, STREAM); }
API cuStreamSynchronize(u64 s) {
  ENTER(IN_CONTEXT);
  return find(s, STREAM) ? 0 : INVALID_HANDLE;
}
API cuMemcpyHtoDAsync_v2(u64 d, u64 p, u64 n, u64 s) {
  ENTER(IN_CONTEXT);
  WANT(memory_at(d, n, MEMORY) || memory_at(d, n, IMPORTED));
  WANT(memory_at(p, n, PINNED));
  return enqueue(s, (struct op){COPY, d, p, n, 0, {0}});
}
API cuMemcpyDtoHAsync_v2(u64 p, u64 d, u64 n, u64 s) {
  ENTER(IN_CONTEXT);
  WANT(memory_at(d, n, MEMORY) || memory_at(d, n, IMPORTED));
  WANT(memory_at(p, n, PINNED));
  return enqueue(s, (struct op){COPY, p, d, n, 0, {0}});
}
API cuMemcpyDtoDAsync_v2(u64 to, u64 from, u64 n, u64 s) {
  ENTER(IN_CONTEXT);
  WANT(memory_at(to, n, MEMORY));
  WANT(memory_at(from, n, MEMORY));
  return enqueue(s, (struct op){COPY, to, from, n, 0, {0}});
}
#ifndef WITHOUT_FILL
API cuMemsetD8Async(u64 d, u64 value, u64 n, u64 s) {
  ENTER(IN_CONTEXT);
  WANT(memory_at(d, n, MEMORY) || memory_at(d, n, IMPORTED));
  WANT(value >> 8 == 0);
  return enqueue(s, (struct op){FILL, d, 0, n, value, {0}});
}
#endif
API cuEventCreate(struct object **e, u64 flags) {
  ENTER(IN_CONTEXT);
  WANT(e);
  WANT(flags == 1);
  *e = make(EVENT, 0);
  return 0;
}
API cuEventDestroy_v2(u64 e) { ENTER(IN_CONTEXT); return destroy_handle(e, EVENT); }
API cuEventRecord(u64 e, u64 s) {
  ENTER(IN_CONTEXT);
  return find(e, EVENT) && find(s, STREAM) ? 0 : INVALID_HANDLE;
}
API cuEventElapsedTime(float *ms, u64 from, u64 to) {
  ENTER(IN_CONTEXT);
  WANT(ms);
  *ms = 1.5f;
  return find(from, EVENT) && find(to, EVENT) ? 0 : INVALID_HANDLE;
}
