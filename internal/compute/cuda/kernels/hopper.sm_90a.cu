// Products and attention of many rows on Hopper, where some warps of a block copy and eight multiply
// (https://arxiv.org/abs/2407.08608). The order of every sum is that of the kernels for few rows: it
// takes wgmma and mma to add the products of 16 alike, which compare_products looks at.
#include "attend.cuh"
#include "hopper.cuh"

// Of the warp groups of a block two compute, and the third copies, or one warp of it.
enum { COMPUTING = 2, COPYING = COMPUTING };

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
};

struct AttendGroups {
  TensorMap map;  // of the cache's rows, in boxes of 64 dimensions
  int box;        // rows of a box, all of a block: a power of two
  Attend a;
};

// copy_tiles copies keys and values of tiles to the ring's stages, one of four warps every fourth box.
template <int D, int STAGES>
DI void copy_tiles(const AttendGroups& g, const Ring<STAGES>& ring, u32 stages, const int* table,
                   int kv, int lowest, int highest, int warp) {
  constexpr int PANELS = D / 64, PANEL = TILE * 128, STAGE = 2 * PANELS * PANEL;
  const Attend& p = g.a;
  const int lane = threadIdx.x & 31, from = lowest / TILE, to = highest / TILE;
  const int shift = 31 - __clz(g.box), boxes = TILE >> shift;  // of a tile
  const int values = p.kv_heads * p.block_size;                // rows from a key to its value
  // A warp without boxes would be left behind: of a barrier's phases it tells even from odd ones.
  if (warp >= boxes) return;
  // Boxes of which not all is to be seen, of all positions' boxes: they come row by row.
  const int head = lowest & (g.box - 1) ? lowest >> shift : -1;
  int tail = highest + 1 & (g.box - 1) ? highest >> shift : -1;
  if (tail == head) tail = -1;
  // Where a lane's box of a tile is: the lanes' boxes are the warp's, in their order.
  int at = from * TILE + (warp + lane * 4) * g.box;
  int block = at / p.block_size, offset = at % p.block_size, entry;
  const int blocks = TILE / p.block_size, rest = TILE % p.block_size;  // of a tile
  auto seen = [&] { return at <= highest && at + g.box > lowest; };
  if (seen()) entry = table[block];
#pragma unroll 1
  for (int tile = from; tile <= to; tile++) {
    const u32 stage = stages + (tile - from) % STAGES * STAGE;
    const u32 full = ring.full + 8 * ((tile - from) % STAGES);
    const int first = tile * boxes;
    // Where nothing of a box is to be seen there are zeros, as outside the tensor: values that
    // weights of zero multiply must be numbers.
    const int row =
        seen() ? (entry * 2 * p.kv_heads + kv) * p.block_size + offset : -(1 << 30);
    at += TILE, block += blocks, offset += rest;
    if (offset >= p.block_size) block++, offset -= p.block_size;
    if (seen()) entry = table[block];
    ring.wait_empty(tile - from);
    if (warp == 0) {
      int parts = 0;
      auto by_row = [&](int box) {
        if (box < first || box >= first + boxes) return;
        parts++;
        const u16* keys = p.cache + key_row(p, table, box * g.box, kv) * D;
#pragma unroll 1
        for (int i = lane; i < g.box * (D / 8); i += 32) {
          const int position = box * g.box + i / (D / 8), c = i % (D / 8);
          const int bytes = position <= highest && position >= lowest ? 16 : 0;
          const u16* k = keys + i * 8;
          const u32 spot = stage + c / 8 * PANEL + in_panel(position % TILE, c % 8);
          copy16(spot, k, bytes);
          copy16(spot + PANELS * PANEL, k + (size_t)values * D, bytes);
        }
      };
      by_row(head);
      by_row(tail);
      if (parts > 0) {
        copies_commit();
        copies_wait<0>();
        written_here();
        __syncwarp();
      }
      if (lane == 0) barrier_expect(full, (boxes - parts) * g.box * D * 2 * 2);
    }
#pragma unroll 1
    for (int i = warp; i < boxes; i += 4) {
      const int key = __shfl_sync(~0u, row, i / 4);
      if (lane != 0 || first + i == head || first + i == tail) continue;
      const u32 panel = stage + i * g.box * 128;
#pragma unroll
      for (int n = 0; n < PANELS; n++) {
        copy_box(panel + n * PANEL, &g.map, n * 64, key, full);
        copy_box(panel + (PANELS + n) * PANEL, &g.map, n * 64, key + values, full);
      }
    }
  }
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

// weigh_apart is Rows' weigh for rows whose output products still add to: alpha is what it is to be
// multiplied by. All positions of a whole tile are to be seen.
template <int D>
DI void weigh_apart(Rows<D>& y, float (&s)[TILE / 8][4], float (&alpha)[2], const Attend& p, int tile,
                    bool whole) {
#pragma unroll
  for (int n = 0; n < TILE / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(s[n][i], p.scale);
  if (p.cap > 0.0f) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(p.cap, tanhf(s[n][i] / p.cap));
  }
  if (!whole) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int to = y.position[i] - tile * TILE - (threadIdx.x & 3) * 2;
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
    float most = y.part[i].most;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) most = fmaxf(most, s[n][i * 2 + e]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
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
    alpha[i] = exp2_(y.part[i].most - base);
    y.part[i] = {most, __fmaf_rn(y.part[i].sum, alpha[i], sum)};
  }
}

// store_pairs is Rows' store, two dimensions at a time.
template <int D, int type>
DI void store_pairs(const Rows<D>& y, const Attend& p, int i, int row, int head) {
  const float f = finish(y.whole[i], p.sinks, head);
  const size_t at = (size_t)row * p.ldy + head * D + (threadIdx.x & 3) * 2;
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
    const float2 v = {__fmul_rn(y.out[n][2 * i], f), __fmul_rn(y.out[n][2 * i + 1], f)};
    *(float2*)(p.y + at + n * 8) = v;
    *(u32*)(p.half + at + n * 8) = pack<type>(v.x, v.y);
  }
}

// attend_groups computes 64 query rows per warp group, rows of a sequence times heads of a group.
// While products of a tile's weights and values are under way, so are those of the next tile's
// scores, then its softmax is computed (FlashAttention-3, 3.2).
template <int D, int type>
DI void attend_groups(const AttendGroups& g) {
  constexpr int PANELS = D / 64, STAGES = 4, PANEL = TILE * 128, STAGE = 2 * PANELS * PANEL;
  const Attend& p = g.a;
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  const u32 stages = shared_address(memory);
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), own = warp / 4;
  if (threadIdx.x == 0) prefetch_map(&g.map);
  // Items that have the most positions begin first: they are the last ones of a sequence.
  const int kv = blockIdx.x;
  const int* item = p.items + 4 * (gridDim.y - 1 - blockIdx.y);
  const int row0 = item[0], sequence = item[2], highest = item[3];
  const int group = p.heads / p.kv_heads, units = item[1] * group;
  const int lowest = p.window > 0 ? max(0, p.positions[row0] - p.window + 1) : 0;
  const int from = lowest / TILE, to = highest / TILE;
  const Ring<STAGES> ring(barriers);
  __syncthreads();

  if (own == COPYING) {
    registers_down<24>();
    copy_tiles<D>(g, ring, stages, p.tables + (size_t)sequence * p.table_stride, kv, lowest, highest,
                  warp % 4);
    return;
  }

  registers_up<240>();
  u32 q[D / 16][4];
  load_queries<D, type>(q, p, row0, units, group, kv, warp * 16);

  const int first = own * 64;  // of the warp group's units
  auto position_of = [&](int unit) { return p.positions[row0 + min(unit, units - 1) / group]; };
  const int least = position_of(first), most = position_of(first + 63);
  // A warp group is done with the tile of its last row.
  const int end = first < units ? most / TILE : -1;
  Rows<D> y(p, row0, units, group, warp * 16);
  float s[TILE / 8][4];
  u32 w[TILE / 16][4];
  // Descriptors of the ring's first stage, to which the rest is added.
  const u64 keys = descriptor(stages, 16);
  const u64 values = descriptor(stages + PANELS * PANEL, PANEL);
  auto scores = [&](int tile) {
    const u32 stage = (tile - from) % STAGES * (STAGE >> 4);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      multiply_group<type>(s, q[k], keys + stage + (k / 4 * PANEL + k % 4 * 32 >> 4));
    groups_commit();
  };
  auto outputs = [&](int tile) {
    const u32 stage = (tile - from) % STAGES * (STAGE >> 4);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
      multiply_group_transposed<type>(y.o, w[k], values + stage + (k * 2048 >> 4));
    groups_commit();
  };
  auto clear = [&] {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
  };
  if (from <= end) {
    ring.wait_full(0);
    clear();
    groups_begin(s);
    scores(from);
    groups_end(s);
#pragma unroll 1
    for (int tile = from;; tile++) {
      const bool whole = tile * TILE + TILE - 1 <= least &&
                         (p.window <= 0 || tile * TILE > most - p.window);
      const bool ended = tile > from && y.ends(tile - 1, end);  // a segment, with the tile before
      float before[2], now[2], alpha[2];
      if (ended) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          merge(y.whole[i], y.part[i].most, y.part[i].sum, before[i], now[i]);
          y.part[i] = {NEG_INF, 0.0f};
        }
      }
      weigh_apart(y, s, alpha, p, tile, whole);
      // ptxas would wait before the softmax, where both are in one basic block.
      if (ended) {
        here(y.out);
        groups_end(y.o);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            y.out[n][i] = merged(before[i / 2], y.out[n][i], now[i / 2], y.o[n][i]);
            y.o[n][i] = 0.0f;
          }
      } else {
        here(s);
        groups_end(y.o);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) y.o[n][i] *= alpha[i / 2];
      }
      if (tile > from) ring.release(tile - 1 - from);
#pragma unroll
      for (int k = 0; k < TILE / 16; k++) weights<type>(w[k], s, k);
      if (tile == end) break;
      ring.wait_full(tile + 1 - from);
      clear();
      here(y.o);
      groups_begin(s);
      scores(tile + 1);
      outputs(tile);
      groups_wait<1>();
      here(s);
    }
    groups_begin(y.o);
    outputs(end);
    groups_end(y.o);
    y.fold();
  }
#pragma unroll 1
  for (int tile = max(from, end); tile <= to; tile++) {
    ring.wait_full(tile - from);
    ring.release(tile - from);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int r = warp * 16 + (lane >> 2) + i * 8;
    if (r < units) store_pairs<D, type>(y, p, i, row0 + r / group, kv * group + r % group);
  }
}

#define BLOCK ((COMPUTING + 1) * 128)

KERNEL __launch_bounds__(BLOCK, 1) attend_groups64_bf16(const __grid_constant__ AttendGroups p) {
  attend_groups<64, BF16>(p);
}
KERNEL __launch_bounds__(BLOCK, 1) attend_groups128_bf16(const __grid_constant__ AttendGroups p) {
  attend_groups<128, BF16>(p);
}
KERNEL __launch_bounds__(BLOCK, 1) attend_groups64_f16(const __grid_constant__ AttendGroups p) {
  attend_groups<64, F16>(p);
}
KERNEL __launch_bounds__(BLOCK, 1) attend_groups128_f16(const __grid_constant__ AttendGroups p) {
  attend_groups<128, F16>(p);
}

struct CompareProducts {
  const u16* a;       // [blocks][64][64]
  const u16* b;       // [blocks][128][64]
  const float* c;     // [blocks][64][128]
  int* differing;     // [blocks][128]
};

// compare_products adds a·bᵀ to c by wgmma of 64 and of 128 columns, and by mma, and counts the sums
// of each thread that have other bits.
template <int type>
DI void compare_products(const CompareProducts& p) {
  __shared__ __align__(1024) u8 memory[(64 + 128) * 128];
  const u32 left = shared_address(memory), right = left + 64 * 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const uint4* a = (const uint4*)p.a + (size_t)blockIdx.x * 64 * 8;
  const uint4* b = (const uint4*)p.b + (size_t)blockIdx.x * 128 * 8;
  for (int i = threadIdx.x; i < (64 + 128) * 8; i += 128) {
    const uint4 v = i < 64 * 8 ? a[i] : b[i - 64 * 8];
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(left + in_panel(i / 8, i % 8)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }
  float whole[16][4], half[8][4], one[16][4];
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = warp * 16 + (lane >> 2) + i / 2 * 8, col = n * 8 + (lane & 3) * 2 + i % 2;
      whole[n][i] = one[n][i] = p.c[((size_t)blockIdx.x * 64 + row) * 128 + col];
      if (n < 8) half[n % 8][i] = whole[n][i];
    }
  written_here();
  __syncthreads();
  here(half);
  groups_begin(whole);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    multiply_group<type>(whole, descriptor(left + k * 32, 16), descriptor(right + k * 32, 16));
    multiply_group<type>(half, descriptor(left + k * 32, 16), descriptor(right + k * 32, 16));
  }
  groups_commit();
  groups_end(whole);
  here(half);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u32 x[4];
    matrices4(x, left + in_panel(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
      u32 y[4];
      matrices4(y, right + in_panel(n * 8 + (lane & 7) + ((lane >> 4) << 3),
                                    k * 2 + ((lane >> 3) & 1)));
      multiply<type>(one[n], x, y[0], y[1]);
      multiply<type>(one[n + 1], x, y[2], y[3]);
    }
  }
  int differing = 0;
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int bits = __float_as_int(one[n][i]);
      differing += __float_as_int(whole[n][i]) != bits;
      if (n < 8) differing += __float_as_int(half[n % 8][i]) != bits;
    }
  p.differing[blockIdx.x * 128 + threadIdx.x] = differing;
}

KERNEL __launch_bounds__(128) compare_products_bf16(const __grid_constant__ CompareProducts p) {
  compare_products<BF16>(p);
}
KERNEL __launch_bounds__(128) compare_products_f16(const __grid_constant__ CompareProducts p) {
  compare_products<F16>(p);
}

struct GemmGroups {
  TensorMap w;       // [out][chunks * kpad], in boxes of FEATURES
  TensorMap x;       // [rows][chunks * kpad], in boxes of ROWS
  const float* bias; // of each output feature; null for none
  float* y;          // chunk c is chunk_stride after the one before
  u64 chunk_stride;
  int out, rows, kpad, chunks, ldy;
  int add;           // to what y has
};

// gemm_groups computes 64 output features per warp group, of 128 rows of x. W is the first operand,
// as in gemm.cu.
template <int type>
DI void gemm_groups(const GemmGroups& p) {
  constexpr int FEATURES = COMPUTING * 64, ROWS = 128, STAGES = 4, X = FEATURES * 128;
  constexpr int STAGE = X + ROWS * 128;
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  const u32 stages = shared_address(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, own = warp / 4;
  const int f0 = blockIdx.x * FEATURES, r0 = blockIdx.y * ROWS, chunk = blockIdx.z;
  const int steps = (p.kpad + 63) / 64;
  const Ring<STAGES> ring(barriers);
  __syncthreads();

  if (own == COPYING) {
    registers_down<24>();
    if (warp > COPYING * 4 || lane != 0) return;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      const u32 stage = stages + step % STAGES * STAGE, full = ring.full + 8 * (step % STAGES);
      const int column = chunk * p.kpad + step * 64;
      ring.wait_empty(step);
      barrier_expect(full, STAGE);
      copy_box(stage, &p.w, column, f0, full);
      copy_box(stage + X, &p.x, column, r0, full);
    }
    return;
  }

  registers_up<240>();
  float c[ROWS / 8][4];
#pragma unroll
  for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[n][i] = 0.0f;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    ring.wait_full(step);
    const u32 w = stages + step % STAGES * STAGE + own * 64 * 128;
    const u32 x = stages + step % STAGES * STAGE + X;
    auto product = [&](int k) {
      multiply_group<type>(c, descriptor(w + k * 32, 16), descriptor(x + k * 32, 16));
    };
    const int left = p.kpad - step * 64;
    groups_begin(c);
    if (left >= 64) {
#pragma unroll
      for (int k = 0; k < 4; k++) product(k);
    } else {
#pragma unroll 1
      for (int k = 0; k < left / 16; k++) product(k);
    }
    groups_commit();
    groups_wait<1>();
    if (step > 0) ring.release(step - 1);
  }
  groups_end(c);

  float* y = p.y + (size_t)chunk * p.chunk_stride;
#pragma unroll
  for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int f = f0 + warp * 16 + (lane >> 2) + (i >> 1) * 8;
      const int r = r0 + n * 8 + (lane & 3) * 2 + (i & 1);
      if (f >= p.out || r >= p.rows) continue;
      float v = c[n][i];
      if (p.bias) v += p.bias[f];
      float* to = y + (size_t)r * p.ldy + f;
      *to = p.add ? *to + v : v;
    }
}

KERNEL __launch_bounds__(BLOCK, 1) gemm_groups_bf16(const __grid_constant__ GemmGroups p) {
  gemm_groups<BF16>(p);
}
KERNEL __launch_bounds__(BLOCK, 1) gemm_groups_f16(const __grid_constant__ GemmGroups p) {
  gemm_groups<F16>(p);
}
