// libcublasLt.so.13 without a GPU, for tests: the exports that the package cublaslt uses.
enum { INVALID_ARGUMENT = 7 };
#define VARIABLE "CUBLASLT_TEST"
#include "calls.h"

static int made;  // what was made and not destroyed
static void start(void) {}

#define ENTER { int code = wanted(__func__, 0); if (code) return code; }

EXPORT int test_made(void) { return made; }

EXPORT size_t cublasLtGetVersion(void) { return wanted("version", 130100); }
EXPORT const char *cublasLtGetStatusString(u64 code) {
  return code == 1 ? "the library was not initialized" : "other error";
}

static struct handle { int open; } handle;
API cublasLtCreate(struct handle **to) {
  ENTER;
  WANT(to && !handle.open);
  handle.open = 1, made++;
  *to = &handle;
  return 0;
}
API cublasLtDestroy(struct handle *h) {
  ENTER;
  WANT(h == &handle && h->open);
  h->open = 0, made--;
  return 0;
}

// Attributes by their numbers in cublasLt.h, of so many bytes.
struct attributes { u64 kind, value[16]; };
enum { DESC = 1, LAYOUT, PREFERENCE };
static struct attributes *make(u64 kind) {
  struct attributes *a = calloc(1, sizeof *a);
  a->kind = kind, made++;
  return a;
}
static int destroy(const char *call, struct attributes *a, u64 kind) {
  if (!a || a->kind != kind) return complain(call, "of its kind");
  free(a);
  made--;
  return 0;
}
static int set(const char *call, struct attributes *a, u64 kind, u64 n, void *v, u64 bytes,
               const char *sizes) {
  if (!a || a->kind != kind) return complain(call, "of its kind");
  if (n >= strlen(sizes) || !v || bytes != (u64)(sizes[n] - '0'))
    return complain(call, "an attribute of so many bytes");
  a->value[n] = 0;
  memcpy(&a->value[n], v, bytes);
  return 0;
}

API cublasLtMatmulDescCreate(struct attributes **to, u64 compute, u64 scale) {
  ENTER;
  WANT(to && compute == 68 && scale == 0);
  *to = make(DESC);
  return 0;
}
API cublasLtMatmulDescSetAttribute(struct attributes *a, u64 n, void *v, u64 bytes) {
  ENTER;
  return set(__func__, a, DESC, n, v, bytes, "44444");
}
API cublasLtMatmulDescDestroy(struct attributes *a) {
  ENTER;
  return destroy(__func__, a, DESC);
}

enum { TYPE, ORDER, ROWS, COLS, LD, BATCH, STRIDES };
API cublasLtMatrixLayoutCreate(struct attributes **to, u64 type, u64 rows, u64 cols, u64 ld) {
  ENTER;
  WANT(to && (type == 0 || type == 14) && rows && cols && ld >= rows);
  *to = make(LAYOUT);
  return 0;
}
API cublasLtMatrixLayoutSetAttribute(struct attributes *a, u64 n, void *v, u64 bytes) {
  ENTER;
  return set(__func__, a, LAYOUT, n, v, bytes, "4488848");
}
API cublasLtMatrixLayoutDestroy(struct attributes *a) {
  ENTER;
  return destroy(__func__, a, LAYOUT);
}

API cublasLtMatmulPreferenceCreate(struct attributes **to) {
  ENTER;
  WANT(to);
  *to = make(PREFERENCE);
  return 0;
}
API cublasLtMatmulPreferenceSetAttribute(struct attributes *a, u64 n, void *v, u64 bytes) {
  ENTER;
  return set(__func__, a, PREFERENCE, n, v, bytes, "480404444");
}
API cublasLtMatmulPreferenceDestroy(struct attributes *a) {
  ENTER;
  return destroy(__func__, a, PREFERENCE);
}

// Whether all descriptions are of one product: op(W) x, W transposed, of numbers of 16 bits.
static int product(struct handle *h, struct attributes *d, struct attributes *w,
                   struct attributes *x, struct attributes *c, struct attributes *y) {
  return h == &handle && d->kind == DESC && w->kind == LAYOUT && x->kind == LAYOUT && c == y &&
    y->kind == LAYOUT && d->value[3] == 1 && d->value[4] == 0 && w->value[TYPE] == x->value[TYPE] &&
    (w->value[TYPE] == 2 || w->value[TYPE] == 14) && y->value[TYPE] == 0 &&
    w->value[ROWS] == x->value[ROWS] && w->value[COLS] == y->value[ROWS] &&
    x->value[COLS] == y->value[COLS] && w->value[BATCH] == x->value[BATCH] &&
    x->value[BATCH] == y->value[BATCH];
}

typedef struct { u64 data[8]; } algorithm;
typedef struct {
  algorithm algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} heuristic;
// A list has an algorithm that divides sums only where it may, one that needs too much memory, and
// one that is in no state to be used.
API cublasLtMatmulAlgoGetHeuristic(struct handle *h, struct attributes *d, struct attributes *w,
                                   struct attributes *x, struct attributes *c, struct attributes *y,
                                   struct attributes *p, u64 most, heuristic *to, int *n) {
  ENTER;
  WANT(product(h, d, w, x, c, y) && p->kind == PREFERENCE && to && n && most >= 4);
  WANT(p->value[1] == 32 << 20 && p->value[5] == 16 && p->value[6] == 16 && p->value[7] == 16);
  WANT(p->value[8] == 16 && (p->value[3] == 0 || p->value[3] == 7));
  memset(to, 0, 4 * sizeof *to);
  *n = 3;
  to[0].algo.data[7] = 1, to[0].workspace = 32 << 20;
  to[1].algo.data[7] = 2, to[1].workspace = (32 << 20) + 1;
  to[2].algo.data[7] = 3, to[2].state = 15;
  if (p->value[3]) to[(*n)++].algo.data[7] = 4;
  return 0;
}
#ifndef WITHOUT_CHECK
API cublasLtMatmulAlgoCheck(struct handle *h, struct attributes *d, struct attributes *w,
                            struct attributes *x, struct attributes *c, struct attributes *y,
                            algorithm *a, heuristic *to) {
  ENTER;
  WANT(product(h, d, w, x, c, y) && a && to);
  memset(to, 0, sizeof *to);
  to->workspace = a->data[7] == 2 ? (32 << 20) + 1 : 0;
  return a->data[7] == 3 ? 15 : 0;
}
#endif

static float number(u64 type, uint16_t v) {
  uint32_t bits = (uint32_t)v << 16;  // bfloat16
  if (type == 2) {                    // float16, of what is neither tiny nor infinite
    bits = (v & 0x8000u) << 16 | (v & 0x7fff ? ((v & 0x7fffu) << 13) + (112u << 23) : 0);
  }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
API cublasLtMatmul(struct handle *h, struct attributes *d, float *alpha, uint16_t *w,
                   struct attributes *wd, uint16_t *x, struct attributes *xd, float *beta,
                   float *c, struct attributes *cd, float *y, struct attributes *yd, algorithm *a,
                   void *workspace, u64 bytes, u64 stream) {
  ENTER;
  WANT(product(h, d, wd, xd, cd, yd) && w && x && y && c == y && stream == 77);
  WANT(a && a->data[7] == 1 && workspace && bytes == 32 << 20);
  WANT(*alpha == 1 && (*beta == 0 || *beta == 1));
  for (u64 b = 0; b < yd->value[BATCH]; b++)
    for (u64 r = 0; r < yd->value[COLS]; r++)
      for (u64 o = 0; o < yd->value[ROWS]; o++) {
        float sum = 0, *to = y + b * yd->value[STRIDES] + r * yd->value[LD] + o;
        for (u64 k = 0; k < wd->value[ROWS]; k++)
          sum += number(wd->value[TYPE], w[b * wd->value[STRIDES] + o * wd->value[LD] + k]) *
            number(xd->value[TYPE], x[b * xd->value[STRIDES] + r * xd->value[LD] + k]);
        *to = sum + (*beta != 0 ? *to : 0);
      }
  return 0;
}

// Sizes and offsets that the package relies on.
EXPORT const u64 layout[] = {sizeof(heuristic), __builtin_offsetof(heuristic, workspace),
                             __builtin_offsetof(heuristic, state)};
