// Attention by tensor cores, for heads of 64 and 128 dimensions over a cache of 16 bits: many rows
// of a sequence share what a block has copied of the cache, few rows are a matter of copying.
#include "attend.cuh"

// spot is where 16 bytes of a row of D numbers are in shared memory.
template <int D>
DI u32 spot(u32 row, u32 c) { return row * (D * 2u) + ((c ^ (row & 7u)) << 4); }

// many_rows computes 16 query rows per warp, rows of a sequence times heads of a group.
template <int D, int type>
DI void many_rows(const Attend& p) {
  constexpr int ROWB = D * 2, STAGE = 2 * TILE * ROWB;
  extern __shared__ __align__(128) u8 memory[];
  const int threads = blockDim.x, units = threads / 2;  // query rows
  const u32 queries = shared_address(memory), stages = queries + units * ROWB;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, kv = blockIdx.y;
  const int* item = p.items + 4 * blockIdx.x;
  const int row0 = item[0], rows = item[1], group = p.heads / p.kv_heads;
  const int* table = p.tables + (size_t)item[2] * p.table_stride;
  const int highest = p.positions[row0 + rows - 1];
  const int lowest = p.window > 0 ? max(0, p.positions[row0] - p.window + 1) : 0;
  const int from = lowest / TILE, to = highest / TILE;

  // The queries, in 16 bits; rows that there are not are zero.
#pragma unroll 1
  for (int i = tid; i < units * (D / 8); i += threads) {
    int r = i / (D / 8), c = i % (D / 8);
    u32 v[4];
    query<D, type>(v, p, row0, rows * group, group, kv, r, c);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(queries + spot<D>(r, c)), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
  }

  auto fetch = [&](int tile) {
    if (tile <= to) {
      const u32 stage = stages + (tile & 1) * STAGE;
#pragma unroll 1
      for (int i = tid; i < TILE * (D / 8); i += threads) {
        int r = i / (D / 8), c = i % (D / 8), position = tile * TILE + r;
        bool there = position <= highest && position >= lowest;
        const u16* k = p.cache;
        size_t values = 0;
        if (there) {
          values = (size_t)p.kv_heads * p.block_size * D;
          k += key_row(p, table, position, kv) * D + c * 8;
        }
        copy16(stage + spot<D>(r, c), k, there ? 16 : 0);
        copy16(stage + TILE * ROWB + spot<D>(r, c), k + values, there ? 16 : 0);
      }
    }
    copies_commit();
  };

  Rows<D> y(p, row0, rows * group, group, warp * 16);
  fetch(from);
#pragma unroll 1
  for (int tile = from; tile <= to; tile++) {
    copies_wait<0>();
    __syncthreads();
    fetch(tile + 1);
    const u32 keys = stages + (tile & 1) * STAGE, values = keys + TILE * ROWB;
    float s[TILE / 8][4];
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      u32 a[4];
      matrices4(a, queries + spot<D>(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < TILE / 8; n += 2) {
        u32 b[4];
        matrices4(b, keys + spot<D>(n * 8 + (lane & 7) + ((lane >> 4) << 3), k * 2 + ((lane >> 3) & 1)));
        multiply<type>(s[n], a, b[0], b[1]);
        multiply<type>(s[n + 1], a, b[2], b[3]);
      }
    }
    y.weigh_now(s, p, tile);
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
      u32 a[4];
      weights<type>(a, s, k);
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {
        u32 b[4];
        matrices4_transposed(b, values + spot<D>(k * 16 + (lane & 15), n + (lane >> 4)));
        multiply<type>(y.o[n], a, b[0], b[1]);
        multiply<type>(y.o[n + 1], a, b[2], b[3]);
      }
    }
    if (y.ends(tile, to)) y.fold();
  }

#pragma unroll
  for (int i = 0; i < 2; i++) {
    int r = warp * 16 + (lane >> 2) + i * 8;
    if (r < rows * group) y.template store<type>(p, i, row0 + r / group, kv * group + r % group);
  }
}

// few_rows computes up to 16 query rows per block, a segment per warp. A whole block computes all
// segments of a sequence, some that follow each other at once, and folds them; else a block has one
// warp, which computes one of gridDim.z and leaves them to fold. A warp copies for itself, half a
// tile of keys or of values at a time: several such pieces are under way.
template <int D, int type, bool whole>
DI void few_rows(const Attend& p) {
  constexpr int HALF = TILE / 2, ROWB = D * 2, PIECE = HALF * ROWB;
  constexpr int WARPS = whole ? 4 : 1, PIECES = whole ? 2 : 4;
  extern __shared__ __align__(256) u8 memory[];  // of each warp its pieces, then its outputs
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
  const int kv = blockIdx.y;
  const int* item = p.items + 4 * blockIdx.x;
  const int row0 = item[0], group = p.heads / p.kv_heads, units = item[1] * group;
  const int highest = item[3], lowest = p.window > 0 ? max(0, p.positions[row0] - p.window + 1) : 0;
  const int first = lowest / SEGMENT, to = highest / SEGMENT;
  int base = first + blockIdx.z * WARPS;  // of those at once
  if (base > to) return;
  const int* table = p.tables + (size_t)item[2] * p.table_stride;
  const int stride = gridDim.z * WARPS;

  // Places in a piece, from which others differ by bits or by whole rows: of 16 bytes that a lane
  // copies, and of rows that it has matrices of.
  const u32 pieces = shared_address(memory) + warp * PIECES * PIECE;
  const u32 copied = pieces + spot<D>(lane / (D / 8), lane % (D / 8));
  const u32 key = pieces + spot<D>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  const u32 value = pieces + spot<D>(lane & 15, lane >> 4);

  // The next tile of the warp after one, which may be beyond the sequence.
  auto next = [&](int tile) {
    return tile % (SEGMENT / TILE) == 0 ? tile + 1 : tile + 1 + (stride - 1) * (SEGMENT / TILE);
  };
  // A lane knows the row of the cache for one position of each half of a tile: the nearest that is
  // to be seen, as values that weights of zero multiply must be numbers.
  u32 cached[2];
  auto find = [&](int tile) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int position = min(max(tile * TILE + h * HALF + lane, lowest), highest);
      cached[h] = (u32)key_row(p, table, position, kv);
    }
  };
  // fetch begins to copy a piece: of a tile both halves of keys, then of values.
  const u64 from = (u64)p.cache + lane % (D / 8) * 16;
  auto fetch = [&](int tile, int piece) {
    if (tile <= highest / TILE) {
      const u32 mine = cached[piece % 2] + (piece < 2 ? 0 : p.kv_heads * p.block_size);
#pragma unroll
      for (int i = 0; i < PIECE / 512; i++) {
        constexpr int ROWS = 256 / D;
        const u32 row = __shfl_sync(~0u, mine, i * ROWS + lane / (D / 8));
        copy16((copied ^ (i * ROWS % 8) << 4) + piece % PIECES * PIECE + i * 512,
               (const void*)(from + (u64)row * ROWB), 16);
      }
    }
    copies_commit();
  };
  // landed waits for the oldest piece, which all lanes have copied of; used begins to copy another
  // one to its place.
  auto landed = [] {
    copies_wait<PIECES - 1>();
    __syncwarp();
  };
  auto used = [&](int tile, int piece) {
    __syncwarp();
    fetch(piece + PIECES < 4 ? tile : next(tile), (piece + PIECES) % 4);
  };

  int tile = max((base + warp) * (SEGMENT / TILE), lowest / TILE);
  find(tile);
#pragma unroll
  for (int i = 0; i < PIECES; i++) fetch(tile, i);
  Rows<D> y(p, row0, units, group, 0);
  u32 queries[D / 16][4];
  load_queries<D, type>(queries, p, row0, units, group, kv, 0);

  // Of a whole block each warp folds every fourth row, a lane every 32nd dimension of it.
  constexpr int FOLDED = 4;
  State sums[FOLDED];
  float out[FOLDED][D / 32];
#pragma unroll
  for (int j = 0; j < FOLDED; j++) {
    sums[j] = {NEG_INF, 0.0f};
#pragma unroll
    for (int e = 0; e < D / 32; e++) out[j][e] = 0.0f;
  }
#pragma unroll 1
  for (; base <= to; base += stride) {
    const int segment = base + warp;
    y.begin();
#pragma unroll 1
    for (; tile <= highest / TILE && tile / (SEGMENT / TILE) == segment; tile = next(tile)) {
      float s[TILE / 8][4];
#pragma unroll
      for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
      if (!whole) find(next(tile));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        landed();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
          for (int n = 0; n < HALF / 8; n += 2) {
            u32 b[4];
            matrices4(b, (key ^ k << 5) + h * PIECE + n * 8 * ROWB);
            multiply<type>(s[h * (HALF / 8) + n], queries[k], b[0], b[1]);
            multiply<type>(s[h * (HALF / 8) + n + 1], queries[k], b[2], b[3]);
          }
        used(tile, h);
      }
      if (whole) find(next(tile));
      y.weigh_now(s, p, tile);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        landed();
#pragma unroll
        for (int k = 0; k < HALF / 16; k++) {
          u32 a[4];
          weights<type>(a, s, h * (HALF / 16) + k);
#pragma unroll
          for (int n = 0; n < D / 8; n += 2) {
            u32 b[4];
            matrices4_transposed(b, (value ^ n << 4) + (2 + h) % PIECES * PIECE + k * 16 * ROWB);
            multiply<type>(y.o[n], a, b[0], b[1]);
            multiply<type>(y.o[n + 1], a, b[2], b[3]);
          }
        }
        used(tile, 2 + h);
      }
    }
    if (!whole) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int r = (lane >> 2) + i * 8;
        if (r >= units || segment > to) continue;
        const int row = row0 + r / group, head = kv * group + r % group;
        const size_t at = ((size_t)row * p.heads + head) * p.segments + segment;
        if ((lane & 3) == 0) ((State*)p.limits)[at] = y.part[i];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
          *(float2*)(p.parts + at * D + n * 8 + (lane & 3) * 2) = {y.o[n][2 * i],
                                                                  y.o[n][2 * i + 1]};
      }
      continue;
    }

    // Warps put their segments side by side. Places of 8 dimensions change with the row, for the
    // banks.
    __shared__ State found[WARPS][16];
    float* const outputs = (float*)(memory + WARPS * PIECES * PIECE);
    auto place = [](int w, int r, int d) { return (w * 16 + r) * D + (d ^ ((r & 7) << 3)); };
    if (base != first) __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int r = (lane >> 2) + i * 8;
      if (r >= units || segment > to) continue;
      if ((lane & 3) == 0) found[warp][r] = y.part[i];
#pragma unroll
      for (int n = 0; n < D / 8; n++)
        *(float2*)(outputs + place(warp, r, n * 8 + (lane & 3) * 2)) = {y.o[n][2 * i],
                                                                       y.o[n][2 * i + 1]};
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < FOLDED; j++) {
      const int r = warp + j * WARPS;
      if (r >= units) continue;
#pragma unroll 1
      for (int w = 0; w < WARPS && base + w <= to; w++) {
        float before, now;
        merge(sums[j], found[w][r].most, found[w][r].sum, before, now);
#pragma unroll
        for (int e = 0; e < D / 32; e++)
          out[j][e] = merged(before, out[j][e], now, outputs[place(w, r, e * 32 + lane)]);
      }
    }
  }
  if (whole) {
#pragma unroll
    for (int j = 0; j < FOLDED; j++) {
      const int r = warp + j * WARPS;
      if (r >= units) continue;
      const int head = kv * group + r % group;
      const float f = finish(sums[j], p.sinks, head);
      const size_t at = (size_t)(row0 + r / group) * p.ldy + head * D + lane;
#pragma unroll
      for (int e = 0; e < D / 32; e++) {
        const float v = __fmul_rn(out[j][e], f);
        p.y[at + e * 32] = v;
        p.half[at + e * 32] = to_half(v, type);
      }
    }
  }
}

#define ATTEND(name, rows, threads, ...)                                        \
  KERNEL __launch_bounds__(threads, 2) name(const __grid_constant__ Attend p) { \
    rows<__VA_ARGS__>(p);                                                       \
  }

ATTEND(attend64_bf16, many_rows, 128, 64, BF16)
ATTEND(attend128_bf16, many_rows, 128, 128, BF16)
ATTEND(attend64_f16, many_rows, 128, 64, F16)
ATTEND(attend128_f16, many_rows, 128, 128, F16)
ATTEND(attend_few64_bf16, few_rows, 128, 64, BF16, true)
ATTEND(attend_few128_bf16, few_rows, 128, 128, BF16, true)
ATTEND(attend_few64_f16, few_rows, 128, 64, F16, true)
ATTEND(attend_few128_f16, few_rows, 128, 128, F16, true)
ATTEND(attend_segments64_bf16, few_rows, 32, 64, BF16, false)
ATTEND(attend_segments128_bf16, few_rows, 32, 128, BF16, false)
ATTEND(attend_segments64_f16, few_rows, 32, 64, F16, false)
ATTEND(attend_segments128_f16, few_rows, 32, 128, F16, false)

struct Fold {
  const float* parts;
  const float* limits;
  const int* rows;       // those that were computed by segments
  const int* positions;
  const float* sinks;
  float* y;
  u16* half;
  int heads, dim, segments, segment, window, ldy, type;
};

// fold adds a row's segments in their order, up to 128 dimensions of a head per block, one per
// thread: 32 are on their way at a time. What they are multiplied by is made by a lane for each (see merge): the
// greatest score so far does not depend on the order.
KERNEL __launch_bounds__(128) fold(const __grid_constant__ Fold p) {
  const int head = blockIdx.x, row = p.rows[blockIdx.y], lane = threadIdx.x & 31;
  const int d = blockIdx.z * blockDim.x + threadIdx.x;
  const int position = p.positions[row], last = position / p.segment;
  const int from = p.window > 0 ? max(0, position - p.window + 1) / p.segment : 0;
  const size_t first = ((size_t)row * p.heads + head) * p.segments;
  State s = {NEG_INF, 0.0f};
  float out = 0.0f;
#pragma unroll 1
  for (int n = from; n <= last; n += 32) {
    float part[32];
#pragma unroll
    for (int i = 0; i < 32; i++)
      part[i] = load_now(p.parts + (first + n + i) * p.dim + d, n + i <= last && d < p.dim);
    const bool there = n + lane <= last;
    const float* limits = p.limits + 2 * (first + n + lane);
    const float score = load_now(limits, there), sum = load_now(limits + 1, there);
    const float own = there ? score : NEG_INF;
    float most = own;
#pragma unroll
    for (int i = 1; i < 32; i <<= 1) {
      const float other = __shfl_up_sync(~0u, most, i);
      if (lane >= i) most = fmaxf(most, other);
    }
    most = fmaxf(most, s.most);
    float last_most = __shfl_up_sync(~0u, most, 1);
    if (lane == 0) last_most = s.most;
    const float before = own == NEG_INF ? 1.0f : exp2_(last_most - most);
    const float now = own == NEG_INF ? 0.0f : exp2_(own - most);
    s.most = __shfl_sync(~0u, most, 31);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      if (n + i > last) break;
      const float b = __shfl_sync(~0u, before, i), w = __shfl_sync(~0u, now, i);
      s.sum = __fmaf_rn(__shfl_sync(~0u, sum, i), w, __fmul_rn(s.sum, b));
      out = merged(b, out, w, part[i]);
    }
  }
  if (d >= p.dim) return;
  float v = __fmul_rn(out, finish(s, p.sinks, head));
  size_t at = (size_t)row * p.ldy + head * p.dim + d;
  p.y[at] = v;
  p.half[at] = to_half(v, p.type);
}
