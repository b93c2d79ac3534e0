// What blocks of warp groups have in common: the ring between those that copy and those that compute,
// and the tiles of a product.
#pragma once
#include "hopper.cuh"

// Of the warp groups of a block two compute, and the third copies, or one warp of it.
enum { COMPUTING = 2, COPYING = COMPUTING };

#define BLOCK ((COMPUTING + 1) * 128)

// EXPERTS is how many experts a product may be of.
enum { EXPERTS = 512 };

// Spot is a stage of a ring of any size, and how often the ring went round before.
struct Spot {
  int at = 0, round = 0;

  DI void next(int stages) {
    if (++at == stages) at = 0, round++;
  }
};

// Ring is the stages between copies and products: full has the bytes of a stage, empty an arrival
// of each warp that has multiplied.
template <int STAGES>
struct Ring {
  u32 full, empty;

  // Ring begins with all stages empty; the block's threads meet after it.
  DI Ring(u64* barriers) : full(shared_address(barriers)), empty(full + 8 * STAGES) {
    if (threadIdx.x != 0) return;
    for (int s = 0; s < STAGES; s++) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, COMPUTING * 4);
    }
    barriers_visible();
  }

  // What a barrier waits for before its first phase is over.
  DI void wait_empty(int n) const { barrier_wait(empty + 8 * (n % STAGES), n / STAGES + 1); }
  DI void wait_full(int n) const { barrier_wait(full + 8 * (n % STAGES), n / STAGES); }
  DI void release(int n) const {
    if ((threadIdx.x & 31) == 0) barrier_arrive(empty + 8 * (n % STAGES));
  }

  // These are those of a ring that has fewer stages.
  DI void wait_empty(const Spot& s) const { barrier_wait(empty + 8 * s.at, s.round + 1); }
  DI void wait_full(const Spot& s) const { barrier_wait(full + 8 * s.at, s.round); }
  DI void release(const Spot& s) const { release(s.at); }
};

// Tiled is a product that blocks compute in tiles of output features and rows.
struct Tiled {
  const u64* experts;  // of grouped products the weights; null for none
  const int* first;    // where the rows of each expert begin in those of x and y, and their end
  const float* bias;   // of each output feature; null for none
  const u64* biases;   // of each expert; null for none
  float* y;            // chunk c is chunk_stride after the one before
  u64 chunk_stride;
  int out, rows, kpad, chunks, ldy;
  int add;             // to what y has
  int band;            // tiles of rows that are computed side by side
  int groups;          // experts
};

// Tile is where a block computes: which features and rows, of which expert.
struct Tile {
  int f0, r0, end, expert;
  const float* bias;

  // store writes sums as those that a thread has: of a chunk, 64 features of the warp group, tiles of
  // 8 rows.
  template <int N>
  DI void store(const Tiled& p, const float (&c)[N][4], float* y, bool add) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int f = f0 + warp * 16 + (lane >> 2) + h * 8;
      if (f >= p.out) continue;
      const float more = bias ? bias[f] : 0.0f;
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int r = r0 + n * 8 + (lane & 3) * 2 + i;
          if (r >= end) continue;
          float v = c[n][2 * h + i];
          if (bias) v += more;
          float* to = y + (size_t)r * p.ldy + f;
          *to = add ? *to + v : v;
        }
    }
  }

  // found adds the sums that are there to those of a thread.
  template <int N>
  DI void found(const Tiled& p, float (&c)[N][4], const float* y) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int f = f0 + warp * 16 + (lane >> 2) + i / 2 * 8, r = r0 + n * 8 + (lane & 3) * 2 + i % 2;
        if (f < p.out && r < end) c[n][i] = y[(size_t)r * p.ldy + f] + c[n][i];
      }
  }
};

// Tiling is the tiles that the grid's blocks compute in turn, numbers that lie a grid apart: bands
// of some tiles of rows, in a band all rows of a tile of features before the next one. So all blocks
// at work find what they multiply in the L2 cache, but for one of them each time. The rows of an
// expert are a band. Of experts there are MOST.
template <int FEATURES, int ROWS, int MOST>
struct Tiling {
  int features, rows;
  const int* ends;  // of experts' tiles of rows, in shared memory

  // Tiling is made by all threads of a block, which meet after it.
  DI Tiling(const Tiled& p, int* memory)
      : features((p.out + FEATURES - 1) / FEATURES), rows((p.rows + ROWS - 1) / ROWS), ends(memory) {
    if (!MOST || !p.first || threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    int before = 0, from = 0;
    for (; from < p.groups; from += 32) {
      const int e = from + lane;
      int n = e < p.groups ? (p.first[e + 1] - p.first[e] + ROWS - 1) / ROWS : 0;
      for (int i = 1; i < 32; i <<= 1) {
        const int other = __shfl_up_sync(~0u, n, i);
        if (lane >= i) n += other;
      }
      memory[e] = before + n;
      before += __shfl_sync(~0u, n, 31);
    }
    for (; from < MOST; from += 32) memory[from + lane] = before;  // which find looks at
  }

  DI int count(const Tiled& p) const {
    return features * (MOST && p.first ? ends[p.groups - 1] : rows);
  }

  DI Tile find(const Tiled& p, int number) const {
    if (MOST && p.first) {
      const int row = number / features;
      int e = 0;  // how many experts' tiles end before
      for (int step = MOST / 2; step; step >>= 1)
        if (ends[e + step - 1] <= row) e += step;
      const int from = e ? ends[e - 1] : 0, height = ends[e] - from;
      const int within = number - from * features;
      return {within / height * FEATURES, p.first[e] + within % height * ROWS, p.first[e + 1], e,
              p.biases ? (const float*)p.biases[e] : nullptr};
    }
    const int from = number / (p.band * features) * p.band, height = min(p.band, rows - from);
    const int within = number - from * features;
    return {within / height * FEATURES, (from + within % height) * ROWS, p.rows, 0, p.bias};
  }
};

// keep puts sums into shared memory, 16 bytes of each thread side by side; found adds what is there.
template <int N>
DI void keep(const float (&c)[N][4], u32 at) {
#pragma unroll
  for (int n = 0; n < N; n++)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"r"(at + (n * COMPUTING * 128 + threadIdx.x) * 16), "f"(c[n][0]), "f"(c[n][1]),
                   "f"(c[n][2]), "f"(c[n][3]) : "memory");
}

template <int N>
DI void found(float (&c)[N][4], u32 at) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    float v[4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(at + (n * COMPUTING * 128 + threadIdx.x) * 16) : "memory");
#pragma unroll
    for (int i = 0; i < 4; i++) c[n][i] = v[i] + c[n][i];
  }
}
