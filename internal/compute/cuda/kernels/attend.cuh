// What both kernels of attention by tensor cores share: the order of its sums, and what is computed
// between products.
//
// Positions are computed in tiles of 64, which make segments of two, both from a multiple on. Within
// a segment a softmax goes on from tile to tile (FlashAttention-2, https://arxiv.org/abs/2307.08691);
// segments are computed for themselves and folded in their order. So the sums of a row are the same
// whether a block computes all of its segments or one each, in whatever rows beside it.
#pragma once
#include "rt.cuh"

#define TILE 64
#define SEGMENT 128

struct Attend {
  const float* q;
  const u16* cache;
  const int* positions;  // of each row
  const int* tables;     // [sequences][table_stride] blocks
  const int* items;      // [items][row, rows, sequence, last position]: rows side by side
  const float* sinks;    // of each head; null for none
  float* y;
  u16* half;             // y in 16 bits
  float* parts;          // [rows][heads][segments][D], for blocks of a segment each; else null
  float* limits;         // [rows][heads][segments][greatest score, sum]
  int heads, kv_heads, ldq, ldy, block_size, table_stride, window, segments;
  float scale, cap;      // scores are in units of log 2
};

// State is a row's softmax so far: the greatest score, and the sum of all relative to it.
struct State {
  float most, sum;
};

// merge adds what a segment found to the state, and says what both outputs are multiplied by. A
// segment without a score changes nothing.
DI void merge(State& s, float most, float sum, float& before, float& now) {
  if (most == NEG_INF) {
    before = 1.0f;
    now = 0.0f;
    return;
  }
  float m = fmaxf(s.most, most);
  before = exp2_(s.most - m);
  now = exp2_(most - m);
  s.sum = __fmaf_rn(sum, now, __fmul_rn(s.sum, before));
  s.most = m;
}

DI float merged(float before, float o, float now, float part) {
  return __fmaf_rn(part, now, __fmul_rn(o, before));
}

// finish is what a row's outputs are multiplied by at the end; a sink is one more score.
DI float finish(const State& s, const float* sinks, int head) {
  if (!sinks) return 1.0f / s.sum;
  float sink = sinks[head] * LOG2E, m = fmaxf(s.most, sink), before = exp2_(s.most - m);
  return before / __fmaf_rn(s.sum, before, exp2_(sink - m));
}

// capped is a score within a cap, which is not part of a sum.
DI float capped(float score, float cap) { return __fmul_rn(cap, tanhf(score / cap)); }

// Softmax is what a thread has of two rows, lane >> 2 of a warp's and the one 8 further down: the
// softmax of the segment at hand.
struct Softmax {
  int position[2];  // -1 for none
  State part[2];

  DI Softmax() {}

  // Softmax is of the rows from first on of those times the heads of a group.
  DI Softmax(const Attend& p, int row0, int units, int group, int first) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int r = first + ((threadIdx.x & 31) >> 2) + i * 8;
      position[i] = r < units ? p.positions[row0 + r / group] : -1;
      part[i] = {NEG_INF, 0.0f};
    }
  }

  // all says whether the warp's rows see all of a tile; those that there are not do.
  DI bool all(const Attend& p, int tile) const {
    bool yes = true;
#pragma unroll
    for (int i = 0; i < 2; i++)
      yes = yes && (position[i] < 0 || (tile * TILE + TILE - 1 <= position[i] &&
                                        (p.window <= 0 || tile * TILE > position[i] - p.window)));
    return __all_sync(~0u, yes);
  }

  // weigh makes weights of what products of a tile's keys are.
  DI void weigh(float (&s)[TILE / 8][4], float (&alpha)[2], const Attend& p, int tile, bool whole) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(s[n][i], p.scale);  // not part of a sum
    if (p.cap > 0.0f) {
#pragma unroll
      for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = capped(s[n][i], p.cap);
    }
    weigh_scores(s, alpha, p, tile, whole);
  }

  // weigh_scores makes weights of the scores of a tile, relative to the greatest so far: alpha is
  // what the output is to be multiplied by to be so, too. Of a whole tile all is to be seen.
  DI void weigh_scores(float (&s)[TILE / 8][4], float (&alpha)[2], const Attend& p, int tile,
                       bool whole) {
    if (!whole) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int to = position[i] - tile * TILE - (threadIdx.x & 3) * 2;
        const int after = p.window > 0 ? to - p.window : -1;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
          for (int e = 0; e < 2; e++)
            if (n * 8 + e > to || n * 8 + e <= after) s[n][i * 2 + e] = NEG_INF;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float most = part[i].most;
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      // A row without a score so far has no greatest one to be relative to.
      const float base = most == NEG_INF ? 0.0f : most;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& v = s[n][i * 2 + e];
          v = exp2_(v - base);
          sum += v;
        }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      alpha[i] = exp2_(part[i].most - base);
      part[i] = {most, __fmaf_rn(part[i].sum, alpha[i], sum)};
    }
  }
};

// Rows are two rows with their outputs, of tiles of 8 dimensions: of the segment at hand, and of
// those before it.
template <int D>
struct Rows : Softmax {
  State whole[2];
  float out[D / 8][4], o[D / 8][4];

  DI Rows() {}

  DI Rows(const Attend& p, int row0, int units, int group, int first)
      : Softmax(p, row0, units, group, first) {
    whole[0] = whole[1] = {NEG_INF, 0.0f};
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[n][i] = 0.0f;
    begin();
  }

  // begin begins a segment.
  DI void begin() {
    part[0] = part[1] = {NEG_INF, 0.0f};
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) o[n][i] = 0.0f;
  }

  // relative makes the output relative to another score.
  DI void relative(const float (&alpha)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) o[n][i] *= alpha[i / 2];
  }

  // weigh_now is weigh, and multiplies the output.
  DI void weigh_now(float (&s)[TILE / 8][4], const Attend& p, int tile) {
    float alpha[2];
    weigh(s, alpha, p, tile, all(p, tile));
    relative(alpha);
  }

  // ends says whether a segment ends with a tile, the last of which is to.
  static DI bool ends(int tile, int to) { return (tile + 1) % (SEGMENT / TILE) == 0 || tile == to; }

  // fold adds the segment to those before it.
  DI void fold() {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float before, now;
      merge(whole[i], part[i].most, part[i].sum, before, now);
#pragma unroll
      for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 2 * i; e < 2 * i + 2; e++)
          out[n][e] = merged(before, out[n][e], now, o[n][e]);
    }
    begin();
  }

  // store writes a row's output: of row and head, i of the two.
  template <int type>
  DI void store(const Attend& p, int i, int row, int head) const {
    const float f = finish(whole[i], p.sinks, head);
    const size_t at = (size_t)row * p.ldy + head * D + (threadIdx.x & 3) * 2;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
      const float2 v = {__fmul_rn(out[n][2 * i], f), __fmul_rn(out[n][2 * i + 1], f)};
      *(float2*)(p.y + at + n * 8) = v;
      *(u32*)(p.half + at + n * 8) = pack<type>(v.x, v.y);
    }
  }
};

// weights is the operand of 16 positions that values are multiplied by, of those of a tile.
template <int type>
DI void weights(u32 (&a)[4], const float (&s)[TILE / 8][4], int k) {
  a[0] = pack<type>(s[2 * k][0], s[2 * k][1]);
  a[1] = pack<type>(s[2 * k][2], s[2 * k][3]);
  a[2] = pack<type>(s[2 * k + 1][0], s[2 * k + 1][1]);
  a[3] = pack<type>(s[2 * k + 1][2], s[2 * k + 1][3]);
}

// query is 8 dimensions of a unit's query in 16 bits, from 8c on: units are rows of an item times
// heads of a group. Those that there are not are zero.
template <int D, int type>
DI void query(u32 (&v)[4], const Attend& p, int row0, int units, int group, int kv, int unit, int c) {
#pragma unroll
  for (int j = 0; j < 4; j++) v[j] = 0;
  if (unit >= units) return;
  const float* q =
      p.q + (size_t)(row0 + unit / group) * p.ldq + (kv * group + unit % group) * D + c * 8;
#pragma unroll
  for (int j = 0; j < 4; j++) v[j] = pack<type>(q[2 * j], q[2 * j + 1]);
}

// load_queries loads a thread's part of its warp's 16 queries, as products have a first operand, in
// 16 bits. Queries that there are not are zero.
template <int D, int type>
DI void load_queries(u32 (&v)[D / 16][4], const Attend& p, int row0, int units, int group, int kv,
                     int first) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int r = first + (lane >> 2) + i * 8;
    const float* q = p.q + (size_t)(row0 + r / group) * p.ldq + (kv * group + r % group) * D;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int at = k * 16 + j * 8 + (lane & 3) * 2;
        v[k][j * 2 + i] = r < units ? pack<type>(q[at], q[at + 1]) : 0;
      }
  }
}

// key_row is the row of the cache that has the key of a position: the value's is kv_heads blocks
// further.
DI size_t key_row(const Attend& p, const int* table, int position, int kv) {
  size_t block = table[position / p.block_size];
  return (block * 2 * p.kv_heads + kv) * p.block_size + position % p.block_size;
}
