// The paged KV cache of one layer, [block][key, value][head][position][dimension], and attention
// over it. Dimensions are padded with zeros to a multiple of 16; a latent is key and value in one.
#include "rt.cuh"

struct WriteCache {
  const float* k;
  const float* v;    // null where a latent is both
  const int* slots;  // block * block_size + offset of each row; negative for none
  void* cache;
  int rows, heads, dim, padded, ldk, ldv, block_size, type;
};

KERNEL write_cache(const __grid_constant__ WriteCache p) {
  const int vectors = p.v ? 2 : 1;
  EACH(p.rows * p.heads * p.padded) {
    int d = i % p.padded, unit = i / p.padded;
    int head = unit % p.heads, row = unit / p.heads;
    if (p.slots[row] < 0) continue;
    int block = p.slots[row] / p.block_size, offset = p.slots[row] % p.block_size;
    for (int n = 0; n < vectors; n++) {
      const float* x = n ? p.v + (size_t)row * p.ldv : p.k + (size_t)row * p.ldk;
      float v = d < p.dim ? x[head * p.dim + d] : 0.0f;
      size_t at = ((((size_t)block * vectors + n) * p.heads + head) * p.block_size + offset) * p.padded + d;
      if (p.type == F32) ((float*)p.cache)[at] = v;
      else ((u16*)p.cache)[at] = to_half(v, p.type);
    }
  }
}

struct Attention {
  const float* q;
  const void* cache;
  const int* positions;  // of each row
  const int* sequences;  // of each row
  const int* tables;     // [sequences][table_stride] blocks
  const int* last;       // the last position of each sequence, of those that look ahead; else null
  const float* sinks;    // of each head; null for none
  float* y;
  u16* half;             // y in 16 bits
  int heads, kv_heads, dim, padded, values, ldq, ldy, block_size, table_stride;
  int window, ahead, latent, cache_type, type;
  float scale, cap;
};

// A tile is 64 positions, from a multiple of 64 on: so a row's sums do not depend on how its
// sequence was cut.
#define TILE 64

// attention computes a head of a row per block, by FMA, for any dimension: scores of a tile, two
// threads for each, a softmax as it goes ("Online normalizer calculation for softmax",
// https://arxiv.org/abs/1805.02867), then the values, a dimension per thread.
KERNEL __launch_bounds__(128) attention(const __grid_constant__ Attention p) {
  extern __shared__ __align__(16) float q[];  // padded
  __shared__ float scores[TILE], weights[TILE];
  __shared__ size_t places[TILE];
  const int head = blockIdx.x, row = blockIdx.y, tid = threadIdx.x, lane = tid & 31;
  const int kv = head / (p.heads / p.kv_heads), vectors = p.latent ? 1 : 2;
  const int position = p.positions[row], sequence = p.sequences[row];
  const int* table = p.tables + (size_t)sequence * p.table_stride;
  int from = 0, to = position;
  if (p.window > 0) from = max(0, position - p.window + 1);
  if (p.last) to = min(p.last[sequence], p.ahead > p.last[sequence] ? p.ahead : position + p.ahead);

  for (int i = tid; i < p.padded; i += 128)
    q[i] = i < p.dim ? p.q[(size_t)row * p.ldq + head * p.dim + i] : 0.0f;
  float o[4] = {0, 0, 0, 0}, most = NEG_INF, sum = 0.0f;
  if (p.sinks) {
    most = p.sinks[head];
    sum = 1.0f;
  }
  const size_t value = p.latent ? 0 : (size_t)p.kv_heads * p.block_size * p.padded;
  __syncthreads();
  for (int t0 = from & ~(TILE - 1); t0 <= to; t0 += TILE) {
    const int lo = max(from - t0, 0), hi = min(to - t0, TILE - 1);
    const int j = tid >> 1, part = tid & 1;
    float s = NEG_INF;
    if (j >= lo && j <= hi) {
      int block = table[(t0 + j) / p.block_size], offset = (t0 + j) % p.block_size;
      size_t at = (((size_t)block * vectors * p.kv_heads + kv) * p.block_size + offset) * p.padded;
      s = 0.0f;
      for (int d = part * 8; d < p.padded; d += 16)
        for (int i = d; i < d + 8; i++) s += q[i] * load(p.cache, at + i, p.cache_type);
      if (part == 0) places[j] = at + value;
    }
    s += __shfl_xor_sync(~0u, s, 1);
    if (part == 0) {
      s *= p.scale;
      if (p.cap > 0.0f && j >= lo && j <= hi) s = p.cap * tanhf(s / p.cap);
      scores[j] = s;
    }
    __syncthreads();
    float a = scores[lane], b = scores[lane + 32];
    float m = fmaxf(most, warp_max(fmaxf(a, b)));
    a = exp2_((a - m) * LOG2E);
    b = exp2_((b - m) * LOG2E);
    float alpha = exp2_((most - m) * LOG2E);
    sum = sum * alpha + warp_sum(a + b);
    most = m;
    if (tid < 32) {
      weights[lane] = a;
      weights[lane + 32] = b;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; n++) {
      int d = n * 128 + tid;
      if (d >= p.values) break;
      o[n] *= alpha;
      for (int i = lo; i <= hi; i++)
        o[n] += weights[i] * load(p.cache, places[i] + d, p.cache_type);
    }
    __syncthreads();  // places and scores are the next tile's
  }
#pragma unroll
  for (int n = 0; n < 4; n++) {
    int d = n * 128 + tid;
    if (d >= p.values) break;
    size_t at = (size_t)row * p.ldy + head * p.values + d;
    p.y[at] = o[n] / sum;
    if (p.half) p.half[at] = to_half(o[n] / sum, p.type);
  }
}
