// Rows of logits: what is done with them (sample.cu, choose.cu), how they are read, and weighed.
//
// A row is read in pieces of 512 logits. Logits are compared as keys of 64 bits: the value, as an
// integer of the same order, above the complement of the id. So no two are equal, greater is more
// likely or has the lower id, and all that is drawn from is what is not below some key.
#pragma once
#include "rt.cuh"

enum { PIECE = 512, PIECES = 2048, BINS = 2048 };

#define IMPOSSIBLE 0x007fffffu  // the order of minus infinity
#define UNSOUND ~0ull           // the key of a piece that has what is no number

// Row is what is to be done with a row: to choose a token, or to describe one.
struct Row {
  float* x;          // logits
  const u32* mask;   // bits of the tokens that may be chosen; null for all
  const int* edits;  // masked ids, ascending; ids and biases, ascending; ids and counts
  int* kept;         // room for the ids that are drawn from
  u64 steps, number, min_p, top_p;  // float64: see sample.Recipe
  int words, masked, biases, seen;  // of the mask; of each kind of edit
  float repetition, frequency, presence;
  float scale;                // steps/64
  int weighed, checked;       // has its pieces weighed; looked at whether it is numbers
  int greedy, top_k, resort;  // see sample.Recipe
  int token, chosen, top;     // given; or of the row that chooses, if -1; how many to describe
  int unsound;                // set by edit
};

// Result is what became of a row.
struct Result {
  u64 sum;    // float64: weights of all, or how many are infinite
  int token;  // -1 where logits are no numbers
  int rank;
  float logit, greatest;
};

// Likely is a token that is described beside the one of its row.
struct Likely {
  int token;
  float logit;
};

// Sample is what all kernels of a step's rows are given.
struct Sample {
  Row* rows;  // those that choose, then those that describe
  u64* most;  // [rows][pieces] keys
  float* weights;
  const u64* powers;
  Result* results;
  Likely* likely;  // [described][widest]
  int vocab, pieces, choosing, widest;
};

DI bool finite(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }

// order maps numbers to integers of the same order, NaN to that of minus infinity.
DI u32 order(float v) {
  if (!(v == v)) v = NEG_INF;
  if (v == 0.0f) v = 0.0f;
  u32 b = __float_as_uint(v);
  return b ^ ((u32)((int)b >> 31) | 0x80000000u);
}

DI float unordered(u32 k) { return __uint_as_float(k >> 31 ? k ^ 0x80000000u : ~k); }

DI u64 key_of(float v, int id) { return (u64)order(v) << 32 | (u32)~id; }
DI int id_of(u64 key) { return (int)~(u32)key; }
DI float logit_of(u64 key) { return unordered((u32)(key >> 32)); }

DI float logit(const Row& r, int i) {
  if (r.mask && (i >> 5 >= r.words || !(r.mask[i >> 5] >> (i & 31) & 1))) return NEG_INF;
  return r.x[i];
}

// load_logits has logits on their way together: from first on, step apart, of n that there are.
template <int step, int N>
DI void load_logits(float (&v)[N], const float* x, int first, int n) {
#pragma unroll
  for (int k = 0; k < N; k++) v[k] = load_now(x + first + step * k, first + step * k < n);
}

// permit makes those minus infinity that there are not, or that the mask of a row excludes.
template <int step, int N>
DI void permit(float (&v)[N], const u32* mask, int words, int first, int n) {
#pragma unroll
  for (int k = 0; k < N; k++)
    if (first + step * k >= n) v[k] = NEG_INF;
  if (!mask) return;
  u32 bits[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    const int i = first + step * k;
    bits[k] = load_now(mask + (i >> 5), i >> 5 < words);
  }
#pragma unroll
  for (int k = 0; k < N; k++)
    if (!(bits[k] >> (first + step * k & 31) & 1)) v[k] = NEG_INF;
}

DI u64 warp_most(u64 v) {
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) {
    u64 w = __shfl_xor_sync(~0u, v, i);
    v = w > v ? w : v;
  }
  return v;
}

DI u64 warp_total(u64 v) {
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
  return v;
}

// block_most is the greatest of all threads' values; parts has a place for each warp. It has one
// barrier: parts may be used again after another one that follows. So it is with block_before.
DI u64 block_most(u64 v, u64* parts) {
  v = warp_most(v);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
  __syncthreads();
  v = (threadIdx.x & 31) < blockDim.x >> 5 ? parts[threadIdx.x & 31] : 0;
  return warp_most(v);
}

// block_before is the sum of the values of the threads before this one; total is that of all.
DI u64 block_before(u64 v, u64* parts, u64& total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u64 sum = v;
#pragma unroll
  for (int i = 1; i < 32; i <<= 1) {
    u64 w = __shfl_up_sync(~0u, sum, i);
    if (lane >= i) sum += w;
  }
  if (lane == 31) parts[warp] = sum;
  __syncthreads();
  u64 part = lane < blockDim.x >> 5 ? parts[lane] : 0;
  total = warp_total(part);
  return warp_total(lane < warp ? part : 0) + sum - v;
}

DI u64 greatest_of(const u64* most, int pieces, u64* parts) {
  u64 v = 0;
  for (int i = threadIdx.x; i < pieces; i += blockDim.x) v = most[i] > v ? most[i] : v;
  return block_most(v, parts);
}

// rough is 2^((v-base)·scale), to 1e-7: see sumsPortable of package sample.
DI float rough(float v, float base, float scale) {
  float y = __fmul_rn(__fsub_rn(v, base), scale);
  if (!(y > -100.0f)) y = -100.0f;
  float z = __fadd_rn(y, 12582912.0f);
  float r = __fsub_rn(y, __fsub_rn(z, 12582912.0f)), r2 = __fmul_rn(r, r);
  float q = __fadd_rn(__fmul_rn(r, 0.0013264724f), 0.009671513f);
  q = __fadd_rn(__fmul_rn(q, r2), __fadd_rn(__fmul_rn(r, 0.055507336f), 0.24022242f));
  q = __fadd_rn(__fmul_rn(q, r2), __fadd_rn(__fmul_rn(r, 0.69314700f), 1.0f));
  return __uint_as_float(__float_as_uint(q) + (__float_as_uint(z) << 23));
}

// half_warp_sum adds what 16 lanes have, in the order of sumsPortable; sums too small to count
// are 0.
DI float half_warp_sum(float v) {
#pragma unroll
  for (int i = 8; i > 0; i >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, i));
  return v < 1.3552527156068805e-20f ? 0.0f : v;  // 2^-66
}

// piece_weight is the weight of a piece of logits, of half a warp. load makes them of a number,
// and of those 16 apart: those that there are not are minus infinity.
template <class F>
DI float piece_weight(F load, int piece, float base, float scale) {
  const int first = piece * PIECE + (threadIdx.x & 15);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = first; i < first + PIECE; i += 256) {
    float v[16];
    load(v, i);
#pragma unroll
    for (int k = 0; k < 16; k++) sum = __fadd_rn(sum, rough(v[k], base, scale));
  }
  return half_warp_sum(sum);
}

// Work is what a block computes in. It has as many threads as a piece has logits.
struct Work {
  union {
    u32 bins[2 * BINS];  // sums by digit: lower halves, then upper ones
    u64 keys[PIECES];
    int counts[PIECES];  // of the ids that are kept of a piece
  };
  float sums[PIECES];
  double weights[PIECE];
  u64 parts[4][PIECE / 32], powers[64];  // parts of what is added up at different places
  u64 found, above, within;  // a digit, what is above it, and its own
  double total, before;
  int hit, listed;
};

// Part is the part of a row that is selected from: its keys from least on.
struct Part {
  const Row& r;
  const u64* most;
  int vocab, pieces;
  u64 least;
  int listed;  // if not negative, r.kept has so many ids, and only they are of the part

  DI u64 kept(u64 key) const { return key >= least ? key : 0; }

  DI u64 key(int i) const { return kept(i < vocab ? key_of(logit(r, i), i) : 0); }

  // keys are those of logits from first on, a warp apart.
  template <int N>
  DI void keys(u64 (&keys)[N], int first) const {
    float v[N];
    load_logits<32>(v, r.x, first, vocab);
    permit<32>(v, r.mask, r.words, first, vocab);
#pragma unroll
    for (int k = 0; k < N; k++)
      keys[k] = first + 32 * k < vocab ? kept(key_of(v[k], first + 32 * k)) : 0;
  }

  // visit calls f of all keys, all lanes of a warp at a time; 0 is a key that does not count.
  template <class F>
  DI void visit(F f) const {
    const int lane = threadIdx.x & 31;
    if (listed >= 0) {
      for (int i = threadIdx.x; i - lane < listed; i += PIECE) f(i < listed ? key(r.kept[i]) : 0);
      return;
    }
    for (int piece = threadIdx.x >> 5; piece < pieces; piece += PIECE / 32) {
      if (most[piece] < least) continue;
      const int first = piece * PIECE + lane;
#pragma unroll 1
      for (int i = first; i < first + PIECE; i += 32 * 4) {
        u64 k[4];
        keys(k, i);
#pragma unroll
        for (int n = 0; n < 4; n++) f(k[n]);
      }
    }
  }
};

// sum_up adds n weights, a run of each lane of the first warp.
template <class W>
DI double sum_up(W weight, int n, double& own, double& before) {
  const int lane = threadIdx.x & 31, run = (n + 31) / 32;
  own = 0.0;
  for (int i = lane * run; i < min(n, (lane + 1) * run); i++) own = __dadd_rn(own, weight(i));
  double sum = own;
#pragma unroll
  for (int i = 1; i < 32; i <<= 1) {
    double w = __shfl_up_sync(~0u, sum, i);
    if (lane >= i) sum = __dadd_rn(sum, w);
  }
  before = __shfl_up_sync(~0u, sum, 1);
  if (lane == 0) before = 0.0;
  return __shfl_sync(~0u, sum, 31);
}
