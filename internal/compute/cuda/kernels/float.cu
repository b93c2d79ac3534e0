// Matrix products y = x·Wᵀ of float, by FMA: for models that run in float32.
//
// Every element of y is one chain over the input features of a chunk in their order, whatever the
// tile that computed it.
#include "rt.cuh"

struct GemmF32 {
  const float* w;      // [out][chunks][kpad], zero behind a chunk's last feature
  const u64* experts;  // of grouped products the weights; null for none
  const int* first;    // where the rows of each expert begin in those of y, and their end
  const int* picked;   // rows of x by rows of y; null is the same
  const float* x;      // [rows][ldx]; chunk c begins at column in*c/chunks
  const float* bias;   // of each output feature; null for none
  const u64* biases;   // of each expert; null for none
  float* y;            // chunk c is chunk_stride after the one before
  u64 chunk_stride;
  int out, rows, in, kpad, chunks, ldx, ldy;
  int add;             // to what y has
};

// product computes 64 output features of 4*ROWS rows of x, a thread 4 by ROWS of them; 16 input
// features at a time are in shared memory.
template <int ROWS>
DI void product(const GemmF32& p) {
  constexpr int FEATURES = 64, TILE = 4 * ROWS, DEPTH = 16, THREADS = 64;
  __shared__ float ws[DEPTH][FEATURES + 1], xs[DEPTH][TILE + 1];
  const int tid = threadIdx.x, tf = tid & 15, tr = tid >> 4;
  const int expert = blockIdx.z / p.chunks, chunk = blockIdx.z % p.chunks;
  const int f0 = blockIdx.x * FEATURES;
  int r0 = blockIdx.y * TILE, end = p.rows;
  const float* w = p.w;
  const float* bias = p.bias;
  if (p.experts) {
    r0 += p.first[expert];
    end = p.first[expert + 1];
    w = (const float*)p.experts[expert];
    if (p.biases) bias = (const float*)p.biases[expert];
  }
  if (r0 >= end) return;
  const int begin = (int)((u64)p.in * chunk / p.chunks);
  const int width = (int)((u64)p.in * (chunk + 1) / p.chunks) - begin;
  float sums[4][ROWS] = {};
  for (int k0 = 0; k0 < width; k0 += DEPTH) {
    const int depth = min(DEPTH, width - k0);
    // What lies beyond an edge is as what is within: nothing is made of it.
#pragma unroll 4
    for (int i = tid; i < FEATURES * DEPTH / 4; i += THREADS) {
      const int f = i / (DEPTH / 4), k = i % (DEPTH / 4) * 4;
      const float4 v = *(const float4*)(w + ((size_t)min(f0 + f, p.out - 1) * p.chunks + chunk) * p.kpad + k0 + k);
      ws[k][f] = v.x, ws[k + 1][f] = v.y, ws[k + 2][f] = v.z, ws[k + 3][f] = v.w;
    }
#pragma unroll 4
    for (int i = tid; i < TILE * DEPTH; i += THREADS) {
      const int r = min(r0 + i / DEPTH, end - 1), k = min(i % DEPTH, depth - 1);
      xs[i % DEPTH][i / DEPTH] = p.x[(size_t)(p.picked ? p.picked[r] : r) * p.ldx + begin + k0 + k];
    }
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < depth; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < ROWS; j++)
          sums[i][j] = fmaf(ws[k][tf + 16 * i], xs[k][tr + 4 * j], sums[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
      const int f = f0 + tf + 16 * i, r = r0 + tr + 4 * j;
      if (f >= p.out || r >= end) continue;
      float* y = p.y + p.chunk_stride * chunk + (size_t)r * p.ldy + f;
      const float v = bias ? sums[i][j] + bias[f] : sums[i][j];
      *y = p.add ? *y + v : v;
    }
}

KERNEL __launch_bounds__(64, 8) gemm4_f32(const __grid_constant__ GemmF32 p) { product<1>(p); }
KERNEL __launch_bounds__(64, 8) gemm32_f32(const __grid_constant__ GemmF32 p) { product<8>(p); }
