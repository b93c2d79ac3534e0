// What adapters add to the products of a weight, B·(A·x) (LoRA, https://arxiv.org/abs/2106.09685),
// of rows each of which has an adapter of its own, or none. Numbers of A, B and x are of the type
// that the model runs in, those of A·x float. Each element is a chain of its own, so no bits depend on the rows beside it.
#include "rt.cuh"

// Adapter is what the adapter in a place has beside a weight: A, the rows of it, and which of the
// weight's Ups are its own. One that has nothing has no rows.
struct Adapter {
  u64 a;  // address of [rank][chunks][kpad]
  int rank, first, count, unused;
};

// Up is B of a module: it multiplies rank numbers of A·x from one on, to out features from at on.
struct Up {
  u64 b;  // address of [out][padded]
  int from, rank, padded, at, out, unused;
};

struct Lower {
  const Adapter* adapters;
  const int* places;  // of each row's adapter, negative for none
  const void* x;      // [rows][ldx]; chunk c begins at column in*c/chunks
  float* y;           // [rows][width], zero behind the numbers of a row's adapter
  int rows, in, chunks, kpad, ldx, width, type;
  int aligned;        // all rows and chunks of x begin at multiples of 16 bytes
};

// run is how many rows from one on, most at most, have its adapter.
DI int run(const int* places, int row, int most) {
  int n = 1;
  while (n < most && places[row + n] == places[row]) n++;
  return n;
}

// eight are numbers of a type from one on, n of them at most, which lie at a multiple of 16 bytes if
// aligned says so.
DI void eight(float (&v)[8], const void* p, size_t at, int n, int aligned, int type) {
  if (type != F32 && aligned && n >= 8) {
    const uint4 all = *(const uint4*)((const u16*)p + at);
    const u32 pairs[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = from_half((u16)(pairs[i >> 1] >> 16 * (i & 1)), type);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = i < n ? load(p, at + i, type) : 0.0f;
}

// lower computes a number of A·x by a warp, of ROWS rows one after the other, those of one adapter
// at a time. Lane l has 8 input features of 256 from 8l on; lanes are added as a butterfly, chunks
// as a tree.
template <int ROWS>
DI void lower(const Lower& p) {
  const int lane = threadIdx.x & 31, j = blockIdx.y * 4 + (threadIdx.x >> 5);
  const int end = min(p.rows, ((int)blockIdx.x + 1) * ROWS);
  if (j >= p.width) return;
  for (int r = blockIdx.x * ROWS, n; r < end; r += n) {
    n = run(p.places, r, end - r);
    const int place = p.places[r];
    float sums[ROWS] = {};
    if (place >= 0 && j < p.adapters[place].rank) {
      const void* a = (const void*)p.adapters[place].a;
      for (int c = 0; c < p.chunks; c++) {
        const size_t row = ((size_t)j * p.chunks + c) * p.kpad;
        const int from = (int)((long long)p.in * c / p.chunks);
        const int features = (int)((long long)p.in * (c + 1) / p.chunks) - from;
        float parts[ROWS] = {};
        for (int k = lane * 8; k < features; k += 256) {
          float w[8], x[8];
          eight(w, a, row + k, 8, 1, p.type);
#pragma unroll
          for (int t = 0; t < ROWS; t++)
            if (t < n) {
              eight(x, p.x, (size_t)(r + t) * p.ldx + from + k, features - k, p.aligned, p.type);
#pragma unroll
              for (int i = 0; i < 8; i++)
                if (k + i < features) parts[t] = fmaf(w[i], x[i], parts[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
          const float v = warp_sum(parts[t]);
          if (lane == c) sums[t] = v;
        }
      }
#pragma unroll
      for (int t = 0; t < ROWS; t++)
        for (int i = 1; i < p.chunks; i *= 2) sums[t] += __shfl_xor_sync(~0u, sums[t], i);
    }
#pragma unroll
    for (int t = 0; t < ROWS; t++)
      if (t < n && lane == 0) p.y[(size_t)(r + t) * p.width + j] = sums[t];
  }
}

KERNEL __launch_bounds__(128) lower1(const __grid_constant__ Lower p) { lower<1>(p); }
KERNEL __launch_bounds__(128) lower8(const __grid_constant__ Lower p) { lower<8>(p); }

struct Raise {
  const Adapter* adapters;
  const Up* ups;
  const int* places;  // of each row's adapter, negative for none
  const float* x;     // [rows][width]
  float* y;           // [rows][ldy], which it is added to
  int rows, width, out, ldy, type;
};

// raise computes an output feature by a thread, of ROWS rows as lower does.
template <int ROWS>
DI void raise(const Raise& p) {
  const int o = blockIdx.y * blockDim.x + threadIdx.x;
  const int end = min(p.rows, ((int)blockIdx.x + 1) * ROWS);
  if (o >= p.out) return;
  for (int r = blockIdx.x * ROWS, n; r < end; r += n) {
    n = run(p.places, r, end - r);
    const int place = p.places[r];
    if (place < 0) continue;
    const Adapter* a = p.adapters + place;
    for (int u = a->first; u < a->first + a->count; u++) {
      const Up* up = p.ups + u;
      if (o < up->at || o >= up->at + up->out) continue;
      float sums[ROWS] = {};
      for (int k = 0; k < up->rank; k += 8) {
        float b[8];
        eight(b, (const void*)up->b, (size_t)(o - up->at) * up->padded + k, 8, 1, p.type);
#pragma unroll
        for (int t = 0; t < ROWS; t++)
          if (t < n) {
            const float* x = p.x + (size_t)(r + t) * p.width + up->from + k;
#pragma unroll
            for (int i = 0; i < 8; i++)
              if (k + i < up->rank) sums[t] = fmaf(b[i], x[i], sums[t]);
          }
      }
#pragma unroll
      for (int t = 0; t < ROWS; t++)
        if (t < n) p.y[(size_t)(r + t) * p.ldy + o] += sums[t];
    }
  }
}

KERNEL __launch_bounds__(128) raise1(const __grid_constant__ Raise p) { raise<1>(p); }
KERNEL __launch_bounds__(128) raise8(const __grid_constant__ Raise p) { raise<8>(p); }
