// Tokens from logits, and log-probabilities: what package sample does on the host, with the same
// arithmetic, so that equal logits give equal tokens. This file has all but the choice (choose.cu).
//
// survey and weigh have a warp or half a warp for each piece of any row, so that few rows fill the
// device, too: they leave the greatest key and the weight of each. Then one block of a row goes on
// by these, and reads only the pieces that matter. Neither the grid nor the rows beside a row are
// part of any sum.
#include "logits.cuh"

// edit changes logits as sample.Sampler.process does, after a look at whether they are numbers.
KERNEL __launch_bounds__(1024) edit(const __grid_constant__ Sample p) {
  Row* row = p.rows + blockIdx.x;
  const Row r = *row;
  if (r.checked) return;
  bool odd = false;
  for (int i = threadIdx.x * 16; i < p.vocab; i += 1024 * 16) odd |= !finite(r.x[i]);
  if (__syncthreads_or(odd)) {
    if (threadIdx.x == 0) row->unsound = 1;
    return;
  }
  for (int i = threadIdx.x; i < r.masked; i += 1024) r.x[r.edits[i]] = NEG_INF;
  __syncthreads();
  const int* pairs = r.edits + r.masked;
  for (int i = threadIdx.x; i < r.biases; i += 1024) {
    int id = pairs[2 * i];
    if (i > 0 && pairs[2 * i - 2] == id) continue;  // the first one adds all of an id
    float v = r.x[id];
    for (int j = i; j < r.biases && pairs[2 * j] == id; j++)
      v = __fadd_rn(v, __int_as_float(pairs[2 * j + 1]));
    r.x[id] = v;
  }
  __syncthreads();
  pairs += 2 * r.biases;
  for (int i = threadIdx.x; i < r.seen; i += 1024) {
    float v = r.x[pairs[2 * i]];
    int n = pairs[2 * i + 1];
    if (r.repetition != 1.0f)
      v = v > 0 ? __fdiv_rn(v, r.repetition) : __fmul_rn(v, r.repetition);
    if (n > 0) {
      v = __fsub_rn(v, __fmul_rn(r.frequency, (float)n));
      v = __fsub_rn(v, r.presence);
    }
    r.x[pairs[2 * i]] = v;
  }
}

// survey finds the greatest key of each piece, a warp's.
KERNEL __launch_bounds__(256) survey(const __grid_constant__ Sample p) {
  const Row& r = p.rows[blockIdx.y];
  const int piece = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (piece >= p.pieces) return;
  const int first = piece * PIECE + lane;
  const int words = r.words, checked = r.checked;
  const u32* mask = r.mask;
  float v[PIECE / 32], best = NEG_INF;
  load_logits<32>(v, r.x, first, p.vocab);
  int at = first;
  bool odd = false;
#pragma unroll
  for (int k = 0; k < PIECE / 32; k++) odd |= (lane & 15) == 0 && !finite(v[k]);
  permit<32>(v, mask, words, first, p.vocab);
#pragma unroll
  for (int k = 0; k < PIECE / 32; k++)
    if (v[k] > best) {
      best = v[k];
      at = first + 32 * k;
    }
  u64 key = warp_most(at < p.vocab ? key_of(best, at) : 0);
  if (checked && __any_sync(~0u, odd)) key = UNSOUND;
  if (lane == 0) p.most[(size_t)blockIdx.y * p.pieces + piece] = key;
}

// weigh adds up the weights of each piece, half a warp's.
KERNEL __launch_bounds__(256) weigh(const __grid_constant__ Sample p) {
  __shared__ u64 parts[8];
  const Row r = p.rows[blockIdx.y];
  if (!r.weighed) return;
  u64 top = greatest_of(p.most + (size_t)blockIdx.y * p.pieces, p.pieces, parts);
  const int piece = blockIdx.x * 16 + (threadIdx.x >> 4);
  auto load = [&](float (&v)[16], int first) {
    load_logits<16>(v, r.x, first, p.vocab);
    permit<16>(v, r.mask, r.words, first, p.vocab);
  };
  float w = piece_weight(load, piece, logit_of(top), r.scale);
  if (piece < p.pieces && (threadIdx.x & 15) == 0)
    p.weights[(size_t)blockIdx.y * p.pieces + piece] = w;
}

// at_least counts the logits of a row that are at least v.
DI int at_least(const Row& r, const Sample& p, const u64* most, float v, u64* parts) {
  u64 n = 0, total;
  Part part = {r, most, p.vocab, p.pieces, (u64)order(v) << 32, -1};
  part.visit([&](u64 key) { n += key > 0; });
  block_before(n, parts, total);
  return (int)total;
}

// describe says how likely a token is, and which are the most likely.
KERNEL __launch_bounds__(PIECE) describe(const __grid_constant__ Sample p) {
  __shared__ Work s;
  const int at = p.choosing + blockIdx.x;
  const Row r = p.rows[at];
  const u64* most = p.most + (size_t)at * p.pieces;
  const float* weights = p.weights + (size_t)at * p.pieces;
  const u64 top = greatest_of(most, p.pieces, s.parts[0]);
  const int token = r.token >= 0 ? r.token : p.results[r.chosen].token;
  float v = token >= 0 && token < p.vocab ? r.x[token] : NEG_INF;
  if (!(v > NEG_INF)) v = NEG_INF;
  const int rank = v > NEG_INF ? at_least(r, p, most, v, s.parts[1]) : p.vocab;
  double sum = 0.0;
  if (logit_of(top) == -NEG_INF) {
    sum = at_least(r, p, most, -NEG_INF, s.parts[2]);
  } else if (r.weighed && threadIdx.x < 32) {
    double own, before;
    sum = sum_up([&](int i) { return (double)weights[i]; }, p.pieces, own, before);
  }
  if (threadIdx.x == 0)
    p.results[at] = {(u64)__double_as_longlong(sum), token, rank, v, logit_of(top)};

  // Each piece shows the greatest key that has not been listed.
  for (int i = threadIdx.x; i < p.pieces; i += PIECE) s.keys[i] = most[i];
  for (int n = 0; n < min(r.top, p.vocab); n++) {
    const u64 next = greatest_of(s.keys, p.pieces, s.parts[3]);
    const int piece = id_of(next) / PIECE;
    if (threadIdx.x == 0)
      p.likely[(size_t)blockIdx.x * p.widest + n] = {id_of(next), logit_of(next)};
    if (threadIdx.x < 32) {
      u64 key = 0;
#pragma unroll 1
      for (int i = piece * PIECE + threadIdx.x; i < (piece + 1) * PIECE; i += 32 * 8) {
        float v[8];
        load_logits<32>(v, r.x, i, p.vocab);
#pragma unroll
        for (int k = 0; k < 8; k++) {
          const u64 other = i + 32 * k < p.vocab ? key_of(v[k], i + 32 * k) : 0;
          if (other < next && other > key) key = other;
        }
      }
      key = warp_most(key);
      if (threadIdx.x == 0) s.keys[piece] = key;
    }
    __syncthreads();
  }
}
