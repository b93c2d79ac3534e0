// Products and attention of many rows on Hopper, where some warps of a block copy and eight multiply
// (https://arxiv.org/abs/2407.08608). The order of every sum is that of the kernels for few rows: it
// takes wgmma and mma to add the products of 16 alike, which compare_products looks at.
#include "attend.cuh"
#include "groups.cuh"

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
      y.weigh(s, alpha, p, tile, whole);
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
    if (r < units) y.template store<type>(p, i, row0 + r / group, kv * group + r % group);
  }
}

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
  const u16* b;       // [blocks][256][64]
  const float* c;     // [blocks][64][256]
  int* differing;     // [blocks][128]
};

// compared counts the sums of a thread that wgmma of 8N columns and mma compute with other bits, of
// rows in shared memory or in registers.
template <int type, int N, bool HELD>
DI int compared(const float* c, u32 left, u32 right) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  auto first = [&](int n, int i) {
    const int row = warp * 16 + (lane >> 2) + i / 2 * 8, col = n * 8 + (lane & 3) * 2 + i % 2;
    return c[row * 256 + col];
  };
  float group[N][4];
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) group[n][i] = first(n, i);
  u32 held[4][4];
#pragma unroll
  for (int k = 0; HELD && k < 4; k++)
    matrices4(held[k], left + in_panel(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
  groups_begin(group);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const u64 columns = descriptor(right + k * 32, 16);
    if constexpr (HELD) multiply_group<type>(group, held[k], columns);
    else multiply_group<type>(group, descriptor(left + k * 32, 16), columns);
  }
  groups_commit();
  groups_end(group);
  int differing = 0;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    float one[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) one[i / 4][i % 4] = first(n + i / 4, i % 4);
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
      u32 x[4], y[4];
      matrices4(x, left + in_panel(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
      matrices4(y, right + in_panel(n * 8 + (lane & 7) + ((lane >> 4) << 3),
                                    k * 2 + ((lane >> 3) & 1)));
      multiply<type>(one[0], x, y[0], y[1]);
      multiply<type>(one[1], x, y[2], y[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
      differing += __float_as_int(one[i / 4][i % 4]) != __float_as_int(group[n + i / 4][i % 4]);
  }
  return differing;
}

// compare_products adds a·bᵀ to c by wgmma of 64, 128 and 256 columns, of 128 with rows in registers
// as well, and by mma, and counts the sums of each thread that have other bits.
template <int type>
DI void compare_products(const CompareProducts& p) {
  __shared__ __align__(1024) u8 memory[(64 + 256) * 128];
  const u32 left = shared_address(memory), right = left + 64 * 128;
  const uint4* a = (const uint4*)p.a + (size_t)blockIdx.x * 64 * 8;
  const uint4* b = (const uint4*)p.b + (size_t)blockIdx.x * 256 * 8;
  for (int i = threadIdx.x; i < (64 + 256) * 8; i += 128) {
    const uint4 v = i < 64 * 8 ? a[i] : b[i - 64 * 8];
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(left + in_panel(i / 8, i % 8)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }
  written_here();
  __syncthreads();
  const float* c = p.c + (size_t)blockIdx.x * 64 * 256;
  p.differing[blockIdx.x * 128 + threadIdx.x] = compared<type, 8, false>(c, left, right) +
      compared<type, 16, false>(c, left, right) + compared<type, 16, true>(c, left, right) +
      compared<type, 32, false>(c, left, right);
}

KERNEL __launch_bounds__(128) compare_products_bf16(const __grid_constant__ CompareProducts p) {
  compare_products<BF16>(p);
}
KERNEL __launch_bounds__(128) compare_products_f16(const __grid_constant__ CompareProducts p) {
  compare_products<F16>(p);
}

struct GemmGroups {
  // Of weights [out][chunks * kpad], that begin at multiples of 2^grain bytes from an address on, in
  // boxes of FEATURES.
  TensorMap w;
  TensorMap x;  // [rows][chunks * kpad], in boxes of 128
  Tiled t;
  u64 origin;
  int grain;
};

// Sums are those of a tile that a thread has: of 64 features of the warp group, tiles of 8 rows.
template <int type, int ROWS, int STAGES>
struct Sums {
  static constexpr int FEATURES = COMPUTING * 64, X = FEATURES * 128, STAGE = X + ROWS * 128;
  float c[ROWS / 8][4];

  // chunk makes them those of the steps from one of the ring on, whose number it raises.
  DI void chunk(const Ring<STAGES>& ring, u32 stages, int own, int kpad, int& n) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) c[i / 4][i % 4] = 0.0f;
    const int first = n, end = n + (kpad + 63) / 64;
#pragma unroll 1
    for (; n < end; n++) {
      ring.wait_full(n);
      const u32 w = stages + n % STAGES * STAGE + own * 64 * 128;
      const u32 x = stages + n % STAGES * STAGE + X;
      auto product = [&](int k) {
        multiply_group<type>(c, descriptor(w + k * 32, 16), descriptor(x + k * 32, 16));
      };
      const int left = kpad - (n - first) * 64;
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
      if (n > first) ring.release(n - 1);
    }
    groups_end(c);
    ring.release(n - 1);
  }

  // onto adds them to what others are, which then are a pair's.
  DI void onto(const Sums& before) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) c[i / 4][i % 4] = before.c[i / 4][i % 4] + c[i / 4][i % 4];
  }
};

// gemm_groups computes 64 output features per warp group, of ROWS rows of x. W is the first operand,
// as in gemm.cu. A block computes each chunk of a tile for itself, or, of 2, 4 or 8, all of them,
// which it adds as tree does: the first of two waits in registers, the sum of two in shared memory,
// that of four in y, which is read by the thread that wrote it.
template <int type, int ROWS, int STAGES, bool TREE, int MOST>
DI void gemm_groups(const GemmGroups& p) {
  typedef Sums<type, ROWS, STAGES> Sum;
  constexpr int FEATURES = Sum::FEATURES, STAGE = Sum::STAGE;
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  __shared__ int ends[MOST + 1];
  const Tiled& t = p.t;
  const u32 stages = shared_address(memory), kept = stages + STAGES * STAGE;
  const int warp = threadIdx.x >> 5, own = warp / 4;
  const Tiling<FEATURES, ROWS, MOST> tiling(t, ends);
  const Ring<STAGES> ring(barriers);
  __syncthreads();
  const int each = TREE ? t.chunks : 1;  // of a block's turn
  const int count = tiling.count(t), turns = count * (t.chunks / each);

  int n = 0;  // of the ring
  if (own == COPYING) {
    registers_down<24>();
    if (warp > COPYING * 4 || (threadIdx.x & 31) != 0) return;
#pragma unroll 1
    for (int turn = blockIdx.x; turn < turns; turn += gridDim.x) {
      const Tile tile = tiling.find(t, turn % count);
      const int from = turn / count * t.kpad;
      const int place = MOST && t.experts ? (int)(t.experts[tile.expert] - p.origin >> p.grain) : 0;
#pragma unroll 1
      for (int chunk = 0; chunk < each; chunk++)
#pragma unroll 1
        for (int k = 0; k < t.kpad; k += 64, n++) {
          const u32 stage = stages + n % STAGES * STAGE, full = ring.full + 8 * (n % STAGES);
          const int column = from + chunk * t.kpad + k;
          ring.wait_empty(n);
          barrier_expect(full, STAGE);
          copy_box(stage, &p.w, column, place, tile.f0, full);
#pragma unroll
          for (int r = 0; r < ROWS; r += 128)
            copy_box(stage + Sum::X + r * 128, &p.x, column, tile.r0 + r, full);
        }
    }
    return;
  }

  registers_up<240>();
#pragma unroll 1
  for (int turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const Tile tile = tiling.find(t, turn % count);
    Sum sum;
    if constexpr (!TREE) {
      sum.chunk(ring, stages, own, t.kpad, n);
      tile.store(t, sum.c, t.y + (size_t)(turn / count) * t.chunk_stride, t.add);
    } else {
#pragma unroll 1
      for (int chunk = 1; chunk < each; chunk += 2) {
        Sum first;
        first.chunk(ring, stages, own, t.kpad, n);
        sum.chunk(ring, stages, own, t.kpad, n);
        sum.onto(first);
        if (chunk & 2) found(sum.c, kept);
        else if (chunk + 1 < each) keep(sum.c, kept);
        if ((chunk & 3) == 3 || chunk + 1 == each) tile.store(t, sum.c, t.y, chunk > 3);
      }
    }
  }
}

// Those of 256 rows read less of the L2 cache for each product; those that add chunks write an
// eighth. The first ones are experts', too.
#define GROUPS(name, ...) \
  KERNEL __launch_bounds__(BLOCK, 1) name(const __grid_constant__ GemmGroups p) { \
    gemm_groups<__VA_ARGS__>(p);                                                  \
  }

GROUPS(gemm_groups_bf16, BF16, 128, 6, false, EXPERTS)
GROUPS(gemm_groups256_bf16, BF16, 256, 4, false, 0)
GROUPS(gemm_groups_tree_bf16, BF16, 128, 5, true, 0)
GROUPS(gemm_groups_f16, F16, 128, 6, false, EXPERTS)
GROUPS(gemm_groups256_f16, F16, 256, 4, false, 0)
GROUPS(gemm_groups_tree_f16, F16, 128, 5, true, 0)
