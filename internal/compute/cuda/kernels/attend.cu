// Attention by tensor cores, for heads of 64 and 128 dimensions over a cache of 16 bits.
#include "attend.cuh"

// spot is where 16 bytes of a row of D numbers are in shared memory.
template <int D>
DI u32 spot(u32 row, u32 c) { return row * (D * 2u) + ((c ^ (row & 7u)) << 4); }

// rows_of computes 16 query rows per warp, rows of a sequence times heads of a group. A block has a
// warp for few rows, four for many.
template <int D, int type>
DI void rows_of(const Attend& p) {
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
  int from = lowest / TILE, to = highest / TILE;
  if (p.parts) {
    from = max(from, (int)blockIdx.z * (SEGMENT / TILE));
    to = min(to, (int)blockIdx.z * (SEGMENT / TILE) + SEGMENT / TILE - 1);
    if (from > to) return;
  }

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
    y.weigh(s, p, tile);
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
    if (!p.parts && y.ends(tile, to)) y.fold();
  }

#pragma unroll
  for (int i = 0; i < 2; i++) {
    int r = warp * 16 + (lane >> 2) + i * 8;
    if (r >= rows * group) continue;
    int row = row0 + r / group, head = kv * group + r % group;
    if (p.parts) {
      size_t at = ((size_t)row * p.heads + head) * p.segments + blockIdx.z;
      if ((lane & 3) == 0) {
        p.limits[2 * at] = y.part[i].most;
        p.limits[2 * at + 1] = y.part[i].sum;
      }
#pragma unroll
      for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) p.parts[at * D + n * 8 + (lane & 3) * 2 + e] = y.o[n][2 * i + e];
      continue;
    }
    y.template store<type>(p, i, row, head);
  }
}

#define ATTEND(name, threads, ...) \
  KERNEL __launch_bounds__(threads) name(const __grid_constant__ Attend p) { rows_of<__VA_ARGS__>(p); }

ATTEND(attend64_bf16, 128, 64, BF16)
ATTEND(attend128_bf16, 128, 128, BF16)
ATTEND(attend64_f16, 128, 64, F16)
ATTEND(attend128_f16, 128, 128, F16)

struct Fold {
  const float* parts;
  const float* limits;
  const int* rows;       // those that were computed by segments
  const int* positions;
  const float* sinks;
  float* y;
  u16* half;
  int heads, dim, segments, window, ldy, type;
};

// fold adds a row's segments in their order, a head per block, a dimension per thread: 32 are on
// their way at a time. What they are multiplied by is made by a lane for each (see merge): the
// greatest score so far does not depend on the order.
KERNEL __launch_bounds__(128) fold(const __grid_constant__ Fold p) {
  const int head = blockIdx.x, row = p.rows[blockIdx.y], d = threadIdx.x, lane = d & 31;
  const int position = p.positions[row], last = position / SEGMENT;
  const int from = p.window > 0 ? max(0, position - p.window + 1) / SEGMENT : 0;
  const size_t first = ((size_t)row * p.heads + head) * p.segments;
  State s = {NEG_INF, 0.0f};
  float out = 0.0f;
#pragma unroll 1
  for (int n = from; n <= last; n += 32) {
    float part[32];
#pragma unroll
    for (int i = 0; i < 32; i++)
      part[i] = load_now(p.parts + (first + n + i) * p.dim + d, n + i <= last);
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
  float v = __fmul_rn(out, finish(s, p.sinks, head));
  size_t at = (size_t)row * p.ldy + head * p.dim + d;
  p.y[at] = v;
  p.half[at] = to_half(v, p.type);
}
