// The paged KV cache of one layer, [block][key, value][head][position][dimension], and attention
// over it. Dimensions are padded with zeros to a multiple of 16; a latent is key and value in one.
#include "rt.cuh"

struct WriteCache {
  const float* k;
  const float* v;    // null where a latent is both
  const int* slots;  // block * block_size + offset of each row; negative for none
  const float* k_scales;  // of each head; null where each vector has its own
  const float* v_scales;
  void* cache;
  int rows, heads, dim, padded, ldk, ldv, block_size, type, bytes;
};

// write_codes is write_cache for a cache of codes: a warp for each vector.
KERNEL __launch_bounds__(128) write_codes(const __grid_constant__ WriteCache p) {
  const int vectors = p.v ? 2 : 1, unit = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (unit >= p.rows * vectors * p.heads) return;
  const int row = unit / (vectors * p.heads), n = unit / p.heads % vectors, head = unit % p.heads;
  const int slot = p.slots[row];
  if (slot < 0) return;
  const Place to = vector_at(p.cache, ((size_t)(slot / p.block_size) * vectors + n) * p.heads + head,
                             p.bytes, slot % p.block_size, p.padded, p.block_size, p.type);
  const float* x = (n ? p.v + (size_t)row * p.ldv : p.k + (size_t)row * p.ldk) + head * p.dim;
  const float* scales = n ? p.v_scales : p.k_scales;
  for (int i = p.dim + (threadIdx.x & 31); i < p.padded; i += 32) to.vector[i] = 0;
  encode(to.vector, to.scale, x, p.dim, scales ? scales[head] : 0.0f, p.type);
}

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
  int window, ahead, latent, cache_type, type, bytes;
  float scale, cap;
};

// A tile is 64 positions, from a multiple of 64 on: so a row's sums do not depend on how its
// sequence was cut.
#define TILE 64

// attend_row computes a head of a row per block by FMA, where tensor cores do not: in float32, of
// rows that look ahead, of heads and latents that split.cu is not for. Scores of a tile have two
// threads each, a softmax as it goes ("Online normalizer calculation for softmax",
// https://arxiv.org/abs/1805.02867), then the values, a dimension per thread.
template <bool coded>
DI void attend_row(const Attention& p) {
  extern __shared__ __align__(16) float q[];  // padded
  __shared__ float scores[TILE], weights[TILE], scales[TILE];
  __shared__ const u8* places[TILE];
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
  const size_t value = p.latent ? 0 : (size_t)p.kv_heads * p.bytes;
  auto number = [&](const u8* v, int i) {
    return coded ? code_float(v[i], p.cache_type) : load(v, i, p.cache_type);
  };
  __syncthreads();
  for (int t0 = from & ~(TILE - 1); t0 <= to; t0 += TILE) {
    const int lo = max(from - t0, 0), hi = min(to - t0, TILE - 1);
    const int j = tid >> 1, part = tid & 1;
    float s = NEG_INF;
    if (j >= lo && j <= hi) {
      int block = table[(t0 + j) / p.block_size], offset = (t0 + j) % p.block_size;
      const Place at = vector_at((void*)p.cache, (size_t)block * vectors * p.kv_heads + kv, p.bytes,
                                 offset, p.padded, p.block_size, p.cache_type);
      s = 0.0f;
      for (int d = part * 8; d < p.padded; d += 16)
        for (int i = d; i < d + 8; i++) s += q[i] * number(at.vector, i);
      if (coded) s *= *at.scale;
      if (part == 0) {
        places[j] = at.vector + value;
        if (coded) scales[j] = *(const float*)((const u8*)at.scale + value);
      }
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
      weights[lane] = coded && lane >= lo && lane <= hi ? a * scales[lane] : a;
      weights[lane + 32] = coded && lane + 32 >= lo && lane + 32 <= hi ? b * scales[lane + 32] : b;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; n++) {
      int d = n * 128 + tid;
      if (d >= p.values) break;
      o[n] *= alpha;
      for (int i = lo; i <= hi; i++)
        o[n] += weights[i] * number(places[i], d);
    }
    __syncthreads();  // places and scores are the next tile's
  }
#pragma unroll
  for (int n = 0; n < 4; n++) {
    int d = n * 128 + tid;
    if (d >= p.values) break;
    size_t at = (size_t)row * p.ldy + head * p.values + d;
    p.y[at] = o[n] / sum;
    keep_half(p.half + at, o[n] / sum, p.type);
  }
}

KERNEL __launch_bounds__(128) attention(const __grid_constant__ Attention p) { attend_row<false>(p); }

// attention_codes is attention over codes: a key's scale multiplies its score, a value's its weight.
KERNEL __launch_bounds__(128) attention_codes(const __grid_constant__ Attention p) {
  attend_row<true>(p);
}
