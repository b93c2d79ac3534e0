#include "fake.h"

// Modules: PTX says in its text what is wrong with it, a cubin in the byte after its magic number.
static void say(void *to, u64 *size, const char *text) {
  *size = strlen(text) + 1;
  memcpy(to, text, *size);
}
API cuModuleLoadDataEx(struct object **m, const char *image, u64 n, const uint32_t *options,
                       u64 *values) {
  ENTER(IN_CONTEXT);
  static const uint32_t expected[] = {3, 4, 5, 6};
  WANT(m && image && options && values);
  WANT(n == 4);
  WANT(!memcmp(options, expected, sizeof expected));
  WANT(values[0] && values[2]);
  WANT(values[1] == LOG_BYTES && values[3] == LOG_BYTES);
  char *info = (char *)values[0], *error = (char *)values[2];
  info[LOG_BYTES - 1] = error[LOG_BYTES - 1] = 0; // it is as long as it says
  values[1] = values[3] = 0;
  if (!memcmp(image, "\x7f" "ELF!", 5)) return 209;
  if (memcmp(image, "\x7f" "ELF", 4)) {
    if (strstr(image, "bad")) {
      say(error, &values[3], "ptxas application ptx input, line 3; error   : Unknown symbol\n"
                             "ptxas fatal   : Ptx assembly aborted due to errors\n");
      return 218;
    }
    if (strstr(image, "quiet")) { say(info, &values[1], "info : nothing was made"); return 218; }
    if (strstr(image, "future")) return 222;
  }
  *m = make(MODULE, 0);
  return 0;
}
API cuModuleUnload(u64 m) { ENTER(IN_CONTEXT); return destroy_handle(m, MODULE); }
API cuModuleGetFunction(struct object **f, u64 m, const char *name) {
  ENTER(IN_CONTEXT);
  WANT(f && name);
  struct object *o = find(m, MODULE);
  if (!o) return INVALID_HANDLE;
  if (strcmp(name, "add") && strcmp(name, "nothing")) return NOT_FOUND;
  *f = make(FUNCTION, o);
  strcpy((*f)->name, name);
  return 0;
}
API cuFuncSetAttribute(u64 f, u64 which, u64 value) {
  ENTER(IN_CONTEXT);
  WANT(which == 8);
  U32(value);
  struct object *o = find(f, FUNCTION);
  if (!o) return INVALID_HANDLE;
  if ((long)value > machine[current->device].shared) return INVALID_VALUE;
  o->dynamic = value;
  return 0;
}
API cuFuncGetAttribute(int *to, u64 which, u64 f) {
  ENTER(IN_CONTEXT);
  WANT(to);
  if (!find(f, FUNCTION)) return INVALID_HANDLE;
  switch (which) {
  case 1: *to = 1024; return 0;
  case 3: *to = 16; return 0;
  case 4: *to = 40; return 0;
  }
  return complain(__func__, "an attribute that is used");
}
API cuLaunchKernel(u64 f, u64 gx, u64 gy, u64 gz, u64 bx, u64 by, u64 bz, u64 shared, u64 s,
                   void **params, void **extra) {
  ENTER(IN_CONTEXT);
  U32(gx); U32(gy); U32(gz); U32(bx); U32(by); U32(bz); U32(shared);
  WANT(s && !extra);
  struct object *o = find(f, FUNCTION);
  if (!o) return INVALID_HANDLE;
  u64 threads = bx * by * bz;
  if (gx * gy * gz == 0 || threads == 0 || threads > 1024 || shared > o->dynamic)
    return INVALID_VALUE;
  // Each dimension in its place: a test that sets no two alike sees any that is exchanged.
  set.last_threads = gx + 10 * gy + 100 * gz + 1000 * bx + 10000 * by + 100000 * bz;
  struct op op = {NOTHING, 0, 0, shared, 0, {0}};
  if (!strcmp(o->name, "add")) {
    WANT(params && params[0]);
    op.what = ADD;
    memcpy(op.params, params[0], sizeof(struct add));
    memcpy(last_params, params[0], sizeof(struct add));
  } else {
    WANT(!params);
  }
  return enqueue(s, op);
}
#ifndef WITHOUT_TENSORS
API cuTensorMapEncodeTiled(uint64_t *map, u64 type, u64 rank, u64 base, const u64 *dims,
                           const u64 *strides, const uint32_t *box, const uint32_t *steps,
                           u64 interleave, u64 swizzle, u64 promotion, u64 fill) {
  ENTER(IN_CONTEXT);
  WANT(map && (u64)map % 64 == 0);
  WANT(type == 1 && (rank == 2 || rank == 3) && interleave == 0 && swizzle == 3 && promotion == 3 && fill == 0);
  WANT(dims && strides && box && steps);
  WANT(steps[0] == 1 && steps[1] == 1 && box[0] == 64);
  if (base % 16 || strides[0] % 16 || box[1] == 0 || box[1] > 256) return INVALID_VALUE;
  u64 words[16] = {base, dims[0], dims[1], strides[0], box[0], box[1]};
  if (rank == 3) {
    WANT(steps[2] == 1 && box[1] == 1);
    if (strides[1] % strides[0] || box[2] == 0 || box[2] > 256) return INVALID_VALUE;
    words[6] = dims[2], words[7] = strides[1], words[8] = box[2];
  }
  words[15] = 0x70616d; // the last of the 128 bytes are not zero
  memcpy(map, words, sizeof words);
  return 0;
}
#endif

// Graphs.
API cuStreamBeginCapture_v2(u64 s, u64 mode) {
  ENTER(IN_CONTEXT);
  WANT(mode == 1);
  struct object *o = find(s, STREAM);
  if (!o) return INVALID_HANDLE;
  if (o->capturing) return INVALID_VALUE;
  o->capturing = 1, o->count = 0, o->thread = pthread_self();
  return 0;
}
API cuStreamEndCapture(u64 s, struct object **g) {
  ENTER(IN_CONTEXT);
  WANT(g);
  struct object *o = find(s, STREAM);
  if (!o) return INVALID_HANDLE;
  if (!o->capturing) return INVALID_VALUE;
  if (!pthread_equal(o->thread, pthread_self())) return 908;
  o->capturing = 0;
  *g = make(GRAPH, 0);
  memcpy((*g)->ops, o->ops, sizeof o->ops);
  (*g)->count = o->count;
  return 0;
}
static int instantiate(struct object **e, u64 g) {
  struct object *from = find(g, GRAPH);
  if (!from) return INVALID_HANDLE;
  *e = make(EXEC, 0);
  memcpy((*e)->ops, from->ops, sizeof from->ops);
  (*e)->count = from->count;
  return 0;
}
#ifndef WITHOUT_NEW
API cuGraphInstantiateWithFlags(struct object **e, u64 g, u64 flags) {
  ENTER(IN_CONTEXT);
  WANT(e);
  WANT(flags == 0);
  return instantiate(e, g);
}
#endif
#ifndef WITHOUT_OLD
API cuGraphInstantiate_v2(struct object **e, u64 g, u64 node, u64 log, u64 n) {
  ENTER(IN_CONTEXT);
  WANT(e);
  WANT(!node && !log && !n);
  return instantiate(e, g);
}
#endif
API cuGraphDestroy(u64 g) { ENTER(IN_CONTEXT); return destroy_handle(g, GRAPH); }
API cuGraphLaunch(u64 e, u64 s) {
  ENTER(IN_CONTEXT);
  struct object *o = find(e, EXEC);
  if (!o || !find(s, STREAM)) return INVALID_HANDLE;
  for (int i = 0; i < o->count; i++) run(&o->ops[i]);
  return 0;
}
API cuGraphExecDestroy(u64 e) { ENTER(IN_CONTEXT); return destroy_handle(e, EXEC); }
