// Matrix products y = x·Wᵀ of numbers of 16 bits, summed in float.
//
// W is the first operand of the tensor cores' products, its output features their rows, whatever
// the number of rows of x: so every element of y is one chain of products of 16 in the order of its
// input features, from 0 on, in each chunk. Its bits do not depend on the tile that computed it.
#include "rt.cuh"

struct Gemm {
  const u16* w;              // [out][chunks][kpad], zero behind a chunk's last input feature
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
};

// A tile of shared memory has rows of 64 numbers, 128 bytes. Of a row the 16 bytes number c lie at
// c ^ (row & 7), so that ldmatrix reads without bank conflicts.
DI u32 place(u32 row, u32 c) { return row * 128u + ((c ^ (row & 7u)) << 4); }

// tile computes FEATURES output features of ROWS rows of x: each of WF by WR warps computes MT tiles
// of 16 features by NT tiles of 8 rows.
template <int type, int WF, int WR, int MT, int NT, int STAGES>
DI void tile(const Gemm& p) {
  constexpr int FEATURES = WF * MT * 16, ROWS = WR * NT * 8, THREADS = WF * WR * 32;
  constexpr int STAGE = (FEATURES + ROWS) * 128;
  extern __shared__ __align__(128) u8 memory[];
  const u32 base = shared_address(memory);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int wf = warp % WF, wr = warp / WF;
  const int expert = blockIdx.z / p.chunks, chunk = blockIdx.z % p.chunks;
  const int f0 = blockIdx.x * FEATURES;
  int r0 = blockIdx.y * ROWS, end = p.rows;
  const u16* w = p.w;
  const float* bias = p.bias;
  if (p.experts) {
    r0 += p.first[expert];
    end = p.first[expert + 1];
    w = (const u16*)p.experts[expert];
    if (p.biases) bias = (const float*)p.biases[expert];
  }
  if (r0 >= end) return;
  const size_t ldw = (size_t)p.chunks * p.kpad;
  w += (size_t)chunk * p.kpad;
  const int begin = (int)((u64)p.in * chunk / p.chunks);
  const int width = (int)((u64)p.in * (chunk + 1) / p.chunks) - begin;
  const u16* x = p.x + begin;
  const int steps = (p.kpad + 63) / 64;

  auto fetch = [&](int step) {
    const u32 stage = base + (step % STAGES) * STAGE;
    if (step < steps) {
#pragma unroll 2
      for (int i = tid; i < FEATURES * 8; i += THREADS) {
        int f = i >> 3, k = step * 64 + (i & 7) * 8;
        bool there = f0 + f < p.out && k < p.kpad;
        const u16* from = there ? w + (size_t)(f0 + f) * ldw + k : w;
        copy16(stage + place(f, i & 7), from, there ? 16 : 0);
      }
      const u32 rows = stage + FEATURES * 128;
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

  float c[MT][NT][4];
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[m][n][i] = 0.0f;

#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) fetch(s);
#pragma unroll 1
  for (int s = 0; s < steps; s++) {
    copies_wait<STAGES - 2>();
    __syncthreads();
    fetch(s + STAGES - 1);
    const u32 wt = base + (s % STAGES) * STAGE, xt = wt + FEATURES * 128;
    const int products = min(4, (p.kpad - s * 64) / 16);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      if (k >= products) break;
      u32 a[MT][4];
#pragma unroll
      for (int m = 0; m < MT; m++)
        matrices4(a[m], wt + place((wf * MT + m) * 16 + (lane & 15), k * 2 + (lane >> 4)));
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
  KERNEL __launch_bounds__(threads) name(const __grid_constant__ Gemm p) { tile<type, __VA_ARGS__>(p); }

GEMM(gemm8_bf16, BF16, 128, 4, 1, 1, 1, 4)
GEMM(gemm32_bf16, BF16, 128, 4, 1, 1, 4, 4)
GEMM(gemm128_bf16, BF16, 256, 4, 2, 2, 8, 3)
GEMM(gemm8_f16, F16, 128, 4, 1, 1, 1, 4)
GEMM(gemm32_f16, F16, 128, 4, 1, 1, 4, 4)
GEMM(gemm128_f16, F16, 256, 4, 2, 2, 8, 3)
