// Matrix products y = x·Wᵀ of numbers of 16 bits, summed in float.
//
// W is the first operand of the tensor cores' products, its output features their rows, whatever
// the number of rows of x: so every element of y is one chain of products of 16 in the order of its
// input features, from 0 on, in each chunk. Its bits do not depend on the tile that computed it.
//
// A quantised W is codes of 4 or 8 bits, of which each thread makes the numbers of 16 bits that it
// multiplies by: number·scale + offset in float, rounded. So a product has the bits of that with
// those numbers as a plain W.
#include "rt.cuh"

struct Quantised {
  const float* numbers;  // what the codes of 4 bits stand for
  u64 scale;             // address of [groups][ldscale], of output features; odd for float16
  u64 offset;            // as scale; 0 for none
  const u64* scales;     // of experts
  const u64* offsets;    // null for none
  // Input feature c of the matrix is in group (lead+c)/group: groups begin at multiples of 16 of
  // each chunk, and divide 64 where they are smaller.
  int group, lead, ldscale;
  int smaller;           // how many groups 64 features are of, 0 for less than one
  int e4m3;              // codes of 8 bits are e4m3, else integers
};

struct Gemm {
  const void* w;             // [out][chunks][kpad], zero behind a chunk's last feature; or tiles of codes
  const u64* experts;        // of grouped products the weights; null for none
  const int* first;          // where the rows of each expert begin in those of y, and their end
  const int* picked;         // rows of x by rows of y; null is the same
  const u16* x;              // [rows][ldx]; chunk c begins at column in*c/chunks
  const float* bias;         // of each output feature; null for none
  const u64* biases;         // of each expert; null for none
  float* y;                  // chunk c is chunk_stride after the one before
  u64 chunk_stride;
  int out, rows, in, kpad, chunks, ldx, ldy;
  int add;                   // to what y has
  int aligned;               // all rows and chunks of x begin at multiples of 16 bytes
  Quantised q;
};

// A tile of shared memory has rows of 64 numbers, 128 bytes. Of a row the 16 bytes number c lie at
// c ^ (row & 7), so that ldmatrix reads without bank conflicts.
DI u32 place(u32 row, u32 c) { return row * 128u + ((c ^ (row & 7u)) << 4); }

// numbers are what a thread's codes stand for, in the order of the numbers of an operand of multiply.
template <int bits>
DI void numbers(float (&v)[8], const u32 (&codes)[2], const float* table, int e4m3) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (bits == 4) {
      v[i] = table[(codes[0] >> (4 * i)) & 15u];
    } else if (e4m3) {
      // An e4m3 number is a float's sign, last 4 bits of exponent and first 3 of mantissa.
      u32 b = __byte_perm(codes[i >> 2], 0, 0x0444 | (i & 3) << 12);
      v[i] = __uint_as_float((b & 0x80000000u) | ((b >> 4) & 0x07f00000u)) * 0x1p120f;
    } else {
      // 2^23 + 128 + an integer is a float whose last byte is that of the integer.
      u32 b = __byte_perm(codes[i >> 2] ^ 0x80808080u, 0x4b000000u, 0x7440 | (i & 3));
      v[i] = __uint_as_float(b) - 8388736.0f;
    }
  }
}

DI float scale_at(u32 address, int feature, int halves) {
  if (halves) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address + 2 * feature) : "memory");
    return f16_float(v);
  }
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address + 4 * feature) : "memory");
  return v;
}

// Groups is a place among the groups of a chunk's input features: row is a group, at how many of
// its features lie before the place.
struct Groups {
  int row, at;

  DI Groups(const Quantised& q, int c) : row((q.lead + c) / q.group), at((q.lead + c) % q.group) {}

  // within is how many groups the next 64 features are of.
  DI int within(const Quantised& q) const {
    return q.smaller ? q.smaller + (at > 0) : 1 + (at + 64 > q.group);
  }

  // pass passes some features, not more than a group has.
  DI void pass(int features, int group) {
    at += features;
    if (at >= group) {
      at -= group;
      row++;
    }
  }
};

// tile computes FEATURES output features of ROWS rows of x: each of WF by WR warps computes MT
// tiles of 16 features by NT tiles of 8 rows. A quantised W is [16 features][chunk][64 input
// features], of which a warp's threads have, product after product, the 8 codes that each
// multiplies by; 0 where there are none.
template <int type, int bits, int WF, int WR, int MT, int NT, int STAGES>
DI void tile(const Gemm& p) {
  constexpr int FEATURES = WF * MT * 16, ROWS = WR * NT * 8, THREADS = WF * WR * 32;
  constexpr bool CODES = bits < 16;
  constexpr int TILE = 128 * bits;  // bytes of 16 by 64 weights
  constexpr int X = FEATURES / 16 * TILE, SCALES = X + ROWS * 128, OFFSETS = SCALES + FEATURES * 16;
  constexpr int STAGE = CODES ? OFFSETS + FEATURES * 16 : SCALES;
  extern __shared__ __align__(128) u8 memory[];
  __shared__ float table[16];
  const u32 base = shared_address(memory);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int wf = warp % WF, wr = warp / WF;
  const int expert = blockIdx.z / p.chunks, chunk = blockIdx.z % p.chunks;
  const int f0 = blockIdx.x * FEATURES;
  int r0 = blockIdx.y * ROWS, end = p.rows;
  const void* w = p.w;
  u64 scale = p.q.scale, offset = p.q.offset;
  const float* bias = p.bias;
  if (p.experts) {
    r0 += p.first[expert];
    end = p.first[expert + 1];
    w = (const void*)p.experts[expert];
    if (p.biases) bias = (const float*)p.biases[expert];
    if (CODES) scale = p.q.scales[expert];
    if (CODES && p.q.offsets) offset = p.q.offsets[expert];
  }
  if (r0 >= end) return;
  const int begin = (int)((u64)p.in * chunk / p.chunks);
  const int width = (int)((u64)p.in * (chunk + 1) / p.chunks) - begin;
  const u16* x = p.x + begin;
  const int steps = (p.kpad + 63) / 64;
  Groups ahead(p.q, begin), now = ahead;
  const int last = (p.q.lead + begin + width - 1) / p.q.group;
  if (bits == 4 && tid < 16) table[tid] = p.q.numbers[tid];

  // Scales of a step's groups lie behind each other.
  auto fetch_scales = [&](u32 to, u64 address) {
    const int half = address & 1, pieces = FEATURES / 4 >> half;
    const int rows = min(ahead.within(p.q), last - ahead.row + 1);
    const u8* from = (const u8*)(address & ~(u64)1);
    for (int i = tid; i < rows * FEATURES / 4 >> half; i += THREADS) {
      int r = (i << half) / (FEATURES / 4), piece = i & (pieces - 1), f = piece * 4 << half;
      size_t at = ((size_t)(ahead.row + r) * p.q.ldscale + f0 + f) * 4 >> half;
      bool there = f0 + f < p.q.ldscale;
      copy16(to + r * FEATURES * 4 + piece * 16, from + (there ? at : 0), there ? 16 : 0);
    }
  };

  auto fetch = [&](int step) {
    const u32 stage = base + (step % STAGES) * STAGE;
    if (step < steps) {
      if (CODES) {
#pragma unroll 2
        for (int i = tid; i < X / 16; i += THREADS) {
          size_t at = (size_t)f0 / 16 + i / (TILE / 16);
          bool there = at * 16 < p.out;
          at = (at * p.chunks + chunk) * steps + step;
          const u8* from = (const u8*)w + (there ? at * TILE + i % (TILE / 16) * 16 : 0);
          copy16(stage + i * 16, from, there ? 16 : 0);
        }
        fetch_scales(stage + SCALES, scale);
        if (offset) fetch_scales(stage + OFFSETS, offset);
        if (p.q.smaller) ahead.row += p.q.smaller;
        else ahead.pass(64, p.q.group);
      } else {
        const size_t ldw = (size_t)p.chunks * p.kpad;
        const u16* plain = (const u16*)w + (size_t)chunk * p.kpad;
#pragma unroll 2
        for (int i = tid; i < FEATURES * 8; i += THREADS) {
          int f = i >> 3, k = step * 64 + (i & 7) * 8;
          bool there = f0 + f < p.out && k < p.kpad;
          const u16* from = there ? plain + (size_t)(f0 + f) * ldw + k : plain;
          copy16(stage + place(f, i & 7), from, there ? 16 : 0);
        }
      }
      const u32 rows = stage + X;
#pragma unroll 1
      for (int i = tid; i < ROWS * 8; i += THREADS) {
        int r = i >> 3, k = step * 64 + (i & 7) * 8;
        int n = r0 + r < end ? min(max(width - k, 0), 8) : 0;
        int row = n > 0 ? (p.picked ? p.picked[r0 + r] : r0 + r) : 0;
        const u16* from = n > 0 ? x + (size_t)row * p.ldx + k : p.x;
        u32 to = rows + place(r, i & 7);
        if (p.aligned) {
          copy16(to, from, 2 * n);
          continue;
        }
        u32 v[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 8; j++)
          if (j < n) v[j >> 1] |= (u32)from[j] << (16 * (j & 1));
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                     ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
      }
    }
    copies_commit();
  };

  // quantised makes the operand of product k of a step, of a warp's tile m of 16 features.
  auto quantised = [&](u32 (&a)[4], u32 stage, int row, int m, int k) {
    float v[8], s[2], o[2] = {0.0f, 0.0f};
    u32 codes[2];
    const u32 at = stage + (wf * MT + m) * TILE + (k * 32 + lane) * bits;
    if (bits == 4) codes[0] = load4(at);
    else load8(codes, at);
    numbers<bits>(v, codes, table, p.q.e4m3);
    const u32 scales = stage + SCALES + row * FEATURES * 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int f = (wf * MT + m) * 16 + (lane >> 2) + 8 * i;
      s[i] = scale_at(scales, f, scale & 1);
      if (offset) o[i] = scale_at(scales + FEATURES * 16, f, offset & 1);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      a[i] = pack<type>(__fmaf_rn(v[2 * i], s[i & 1], o[i & 1]),
                        __fmaf_rn(v[2 * i + 1], s[i & 1], o[i & 1]));
  };

  float c[MT][NT][4];
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[m][n][i] = 0.0f;

  // The first steps only fetch.
#pragma unroll 1
  for (int s = 1 - STAGES; s < steps; s++) {
    if (s >= 0) {
      copies_wait<STAGES - 2>();
      __syncthreads();
    }
    fetch(s + STAGES - 1);
    if (s < 0) continue;
    const u32 wt = base + (s % STAGES) * STAGE, xt = wt + X;
    const int products = min(4, (p.kpad - s * 64) / 16), row = now.row;
#pragma unroll CODES ? 1 : 4
    for (int k = 0; k < 4; k++) {
      if (k >= products) break;
      u32 a[MT][4];
#pragma unroll
      for (int m = 0; m < MT; m++) {
        if (CODES) quantised(a[m], wt, min(now.row, last) - row, m, k);
        else matrices4(a[m], wt + place((wf * MT + m) * 16 + (lane & 15), k * 2 + (lane >> 4)));
      }
      if (CODES) now.pass(16, p.q.group);
      if (NT == 1) {
        u32 b[2];
        matrices2(b, xt + place(wr * 8 + (lane & 7), k * 2 + ((lane >> 3) & 1)));
#pragma unroll
        for (int m = 0; m < MT; m++) multiply<type>(c[m][0], a[m], b[0], b[1]);
      } else {
#pragma unroll
        for (int n = 0; n + 1 < NT; n += 2) {
          u32 b[4];
          matrices4(b, xt + place((wr * NT + n) * 8 + (lane & 7) + ((lane >> 4) << 3),
                                  k * 2 + ((lane >> 3) & 1)));
#pragma unroll
          for (int m = 0; m < MT; m++) {
            multiply<type>(c[m][n], a[m], b[0], b[1]);
            multiply<type>(c[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }

  float* y = p.y + (size_t)chunk * p.chunk_stride;
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int f = f0 + (wf * MT + m) * 16 + (lane >> 2) + (i >> 1) * 8;
        int r = r0 + (wr * NT + n) * 8 + (lane & 3) * 2 + (i & 1);
        if (f >= p.out || r >= end) continue;
        float v = c[m][n][i];
        if (bias) v += bias[f];
        float* to = y + (size_t)r * p.ldy + f;
        *to = p.add ? *to + v : v;
      }
}

// Kernels are named for how many rows a block computes. Those of few rows stream W through 4 warps
// of 16 features, the one of 128 is bound by the tensor cores.
#define GEMM(name, type, threads, ...) \
  KERNEL __launch_bounds__(threads, 1) name(const __grid_constant__ Gemm p) { \
    tile<type, __VA_ARGS__>(p);                                               \
  }

GEMM(gemm8_bf16, BF16, 128, 16, 4, 1, 1, 1, 4)
GEMM(gemm32_bf16, BF16, 128, 16, 4, 1, 1, 4, 4)
GEMM(gemm128_bf16, BF16, 256, 16, 4, 2, 2, 8, 3)
GEMM(gemm8_f16, F16, 128, 16, 4, 1, 1, 1, 4)
GEMM(gemm32_f16, F16, 128, 16, 4, 1, 1, 4, 4)
GEMM(gemm128_f16, F16, 256, 16, 4, 2, 2, 8, 3)

GEMM(gemm8_bf16_codes4, BF16, 128, 4, 4, 1, 1, 1, 4)
GEMM(gemm32_bf16_codes4, BF16, 128, 4, 4, 1, 1, 4, 4)
GEMM(gemm128_bf16_codes4, BF16, 256, 4, 4, 2, 2, 8, 3)
GEMM(gemm8_f16_codes4, F16, 128, 4, 4, 1, 1, 1, 4)
GEMM(gemm32_f16_codes4, F16, 128, 4, 4, 1, 1, 4, 4)
GEMM(gemm128_f16_codes4, F16, 256, 4, 4, 2, 2, 8, 3)

GEMM(gemm8_bf16_codes8, BF16, 128, 8, 4, 1, 1, 1, 4)
GEMM(gemm32_bf16_codes8, BF16, 128, 8, 4, 1, 1, 4, 4)
GEMM(gemm128_bf16_codes8, BF16, 256, 8, 4, 2, 2, 8, 3)
GEMM(gemm8_f16_codes8, F16, 128, 8, 4, 1, 1, 1, 4)
GEMM(gemm32_f16_codes8, F16, 128, 8, 4, 1, 1, 4, 4)
GEMM(gemm128_f16_codes8, F16, 256, 8, 4, 2, 2, 8, 3)

struct PackCodes {
  const u8* bytes;  // [rows][in], a code each
  u32* w;           // where the tiles of the rows begin
  int rows, in, chunks, steps, bits;
};

// pack_codes puts codes where tiles have them: a word for each thread. Rows of a last tile and
// input features that are none get 0.
KERNEL pack_codes(const __grid_constant__ PackCodes p) {
  const int each = 32 / p.bits, words = 32 * p.bits;  // of a tile
  EACH((p.rows + 15) / 16 * p.chunks * p.steps * words) {
    int t = i / words, word = i % words;
    int step = t % p.steps, chunk = t / p.steps % p.chunks, tile = t / p.steps / p.chunks;
    int first = word * each % 8, lane = word * each / 8 % 32, product = word * each / 256;
    int begin = (int)((u64)p.in * chunk / p.chunks);
    int stop = (int)((u64)p.in * (chunk + 1) / p.chunks);
    u32 v = 0;
    for (int j = 0; j < each; j++) {
      int n = first + j;
      int row = tile * 16 + lane / 4 + (n >> 1 & 1) * 8;
      int col = begin + step * 64 + product * 16 + lane % 4 * 2 + (n & 1) + (n >> 2) * 8;
      if (row < p.rows && col < stop) v |= (u32)p.bytes[(size_t)row * p.in + col] << (j * p.bits);
    }
    p.w[i] = v;
  }
}
