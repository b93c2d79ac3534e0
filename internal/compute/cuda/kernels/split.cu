// Attention by tensor cores for caches of codes, heads of any size and latents. A block's warps split
// what they compute in two ways: of a tile's scores each has those of 16 positions, of its outputs
// a quarter of the dimensions; between, they exchange scores, as FlashMLA does
// (https://github.com/deepseek-ai/FlashMLA). So what was copied is read once for scores and once
// for outputs, codes are unpacked once for each, and large outputs have registers of four warps.
#include "attend.cuh"

// Unpacking is how codes of a byte become numbers of 16 bits, exactly: with its two bytes at the
// upper ends of both halves, v becomes (v >> shift & bits ^ flip ^ v & sign) * by +
// (v >> shift & less ^ plus). Numbers are to be multiplied by factor.
struct Unpacking {
  int shift, bits, flip, sign, by, less, plus;
  float factor;
};

struct Split {
  Attend a;
  Unpacking codes;
  int head_bytes;  // of a head in a block of the cache
  int dim;         // of keys and values, even; the cache has it padded to a multiple of 16
  int group;       // heads that share keys
  int segment;     // of 2^segment tiles
  int stages;      // tiles that there is room for: one, or two
};

// flipped is v & mask ^ with, in one instruction.
DI u32 flipped(u32 v, u32 mask, u32 with) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(v), "r"(mask), "r"(with));
  return r;
}

// unpack makes numbers of four codes: of the first and the third, and of the second and the fourth.
template <int type>
DI void unpack(u32& even, u32& odd, u32 codes, const Unpacking& u) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 v = i ? codes : codes << 8, low = v >> u.shift;
    const u32 plus = type == F16 ? u.plus : flipped(low, u.less, u.plus);
    (i ? odd : even) =
        multiply_add<type>(flipped(v, u.sign, flipped(low, u.bits, u.flip)), u.by, plus);
  }
}

// copy4 is copy16 of 4 bytes.
DI void copy4(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

DI void store16(u32 to, const u32* v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// times multiplies numbers at two positions of a tile by their factors in shared memory.
DI void times(float (&s)[4], u32 factors, float by) {
  float v[2];
  load8((u32*)v, factors);
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = __fmul_rn(s[i], __fmul_rn(v[i % 2], by));
}

// Memory is where a block has what in its shared memory: of each stage the keys of a tile and their
// values, or latents, which are both, then the scales of each; then what warps exchange, as the
// lanes of a warp have it. Rows are 16 bytes longer than they have to be, for the banks.
template <int TILES, int OWN, bool latent, bool coded>
struct Memory {
  static constexpr int SIZE = coded ? 1 : 2, WARPS = 4, VALUES = WARPS * OWN;
  static constexpr int KINDS = latent ? 1 : 2, SCALES = coded ? KINDS * TILE * 4 : 0;
  static constexpr int SCORES = TILE / 8 * 512, WEIGHTS = TILE / 16 * 512, SUMS = 512, ALPHAS = 256;
  static constexpr int PITCH = VALUES * SIZE + 16;  // of values
  int pitch, values, scales, stage;                 // of keys, and where what is

  DI Memory(int wide)
      : pitch(wide * SIZE + 16),
        values(latent ? 0 : TILE * pitch),
        scales(values + TILE * (latent ? pitch : PITCH)),
        stage(scales + SCALES) {}
};

// pair is two neighbouring numbers of a row's outputs, one of two: number n of a lane's. Of codes
// two tiles of 8 have the even and the odd dimensions of 16.
template <bool coded, int TILES>
DI float2 pair(const float (&o)[TILES][4], int i, int n) {
  if (coded) return {o[n & ~1][2 * i + n % 2], o[n | 1][2 * i + n % 2]};
  return {o[n][2 * i], o[n][2 * i + 1]};
}

// pair_at is the dimension of the first of them.
template <bool coded>
DI int pair_at(int n) {
  const int t = threadIdx.x & 3;
  return coded ? n / 2 * 16 + t * 4 + n % 2 * 2 : n * 8 + t * 2;
}

// attend_split computes tiles of 16 query rows, units from one on of rows of a sequence times heads
// of a group, and up to WARPS * OWN dimensions of their outputs. A block has all segments of them,
// and folds them, or leaves those of one of gridDim.z to fold.
template <int type, int TILES, int OWN, bool latent, bool coded>
DI void attend_split(const Split& split) {
  typedef Memory<TILES, OWN, latent, coded> M;
  constexpr int WARPS = M::WARPS, KINDS = M::KINDS, CHAINS = latent ? 2 : 1;
  extern __shared__ __align__(128) u8 memory[];
  const Attend& p = split.a;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
  // Dimensions of queries, of rows of the cache, of what products go through, and of outputs.
  const int dim = latent ? 576 : split.dim, K = (dim + 15) & ~15, wide = (dim + 31) & ~31;
  const int V = latent ? 512 : dim;
  const M in(wide);
  const u32 queries = shared_address(memory) + split.stages * in.stage + lane * 16;
  const u32 scores = queries + TILES * wide * 32, weighed = scores + TILES * M::SCORES;
  const u32 sums = weighed + TILES * M::WEIGHTS, alphas = sums + TILES * M::SUMS - lane * 8;
  const int* item = p.items + 4 * blockIdx.x;
  const int row0 = item[0], group = split.group, units = item[1] * group;
  const int some = blockIdx.y / p.kv_heads, kv = blockIdx.y - some * p.kv_heads;
  const int cut = V > M::VALUES ? 1 : 0;  // two blocks have a part of the outputs each
  const int from_value = (some & cut) * M::VALUES, first = (some >> cut) * TILES * 16;
  const int* table = p.tables + (size_t)item[2] * p.table_stride;
  const int highest = item[3], lowest = p.window > 0 ? max(0, p.positions[row0] - p.window + 1) : 0;
  const int to = highest / TILE, each = 1 << split.segment;
  const int segment = (lowest / TILE >> split.segment) + blockIdx.z;
  if (segment > to >> split.segment || first >= units) return;

  auto next = [&](int tile) {
    return tile + 1 + ((tile + 1) & (each - 1) ? 0 : (gridDim.z - 1) << split.segment);
  };
  // A warp copies the 16 positions of a tile that it has, which lie side by side in a block. Those
  // that are not to be seen are zero, as values that weights of zero multiply must be numbers.
  const int own = warp * 16;
  int block, offset;  // where those of the next tile are; negative for nowhere
  auto find = [&](int tile) {
    const int at = tile * TILE + own, n = at / p.block_size;
    block = at <= highest && at + 15 >= lowest ? table[n] : -1;
    offset = at - n * p.block_size;
  };
  auto fetch = [&](int tile, u32 stage) {
    const int at = tile * TILE + own;
    const size_t unit = ((size_t)max(block, 0) * KINDS * p.kv_heads + kv) * split.head_bytes;
    const size_t values = (size_t)p.kv_heads * split.head_bytes;
    auto bytes = [&](int r, int n) {
      return block >= 0 && at + r <= highest && at + r >= lowest ? n : 0;
    };
    // copy copies 16 rows, of which so many dimensions in pieces of 16 bytes. Those between K and
    // wide are zero.
    auto copy = [&](u32 to, int pitch, int dims, int at, const u8* from) {
      const int pieces = dims * M::SIZE / 16, there = (K - at) * M::SIZE / 16;
      const int shift = 32 - __clz(pieces - 1);
#pragma unroll 1
      for (int i = lane; i < (latent ? 16 * pieces : 16 << shift); i += 32) {
        const int r = latent ? i / pieces : i >> shift, c = i - (latent ? r * pieces : r << shift);
        if (latent || c < pieces)
          copy16(to + r * pitch + c * 16, from + r * K * M::SIZE + min(c, there - 1) * 16,
                 c < there ? bytes(r, 16) : 0);
      }
    };
    const u8* from = (const u8*)p.cache + unit + (size_t)offset * K * M::SIZE;
    copy(stage + own * in.pitch, in.pitch, wide, 0, from);
    if (!latent)
      copy(stage + in.values + own * M::PITCH, M::PITCH, min(wide - from_value, M::VALUES),
           from_value, from + values + from_value * M::SIZE);
    const int r = lane % 16, kind = lane / 16;
    if (coded && kind < KINDS)
      copy4(stage + in.scales + (kind * TILE + own + r) * 4,
            (const u8*)p.cache + unit + kind * values + p.block_size * K + (offset + r) * 4,
            bytes(r, 4));
  };

  int tile = max(segment << split.segment, lowest / TILE), ahead = tile;
  find(ahead);
  // Which row and head the units are; negative for none.
  __shared__ int2 places[TILES * 16];
  if (threadIdx.x < TILES * 16) {
    const int unit = first + threadIdx.x, row = unit / group;
    const int2 place = {row0 + row, kv * group + unit - row * group};
    places[threadIdx.x] = unit < units ? place : int2{-1, 0};
  }
  __syncthreads();
  // Of codes a product's dimensions are in the order in which unpack has them.
#pragma unroll 1
  for (int i = warp; i < TILES * wide / 16; i += WARPS) {
    const int m = TILES > 1 && i >= wide / 16 ? 1 : 0, k = i - m * (wide / 16);
    u32 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int2 place = places[m * 16 + (lane >> 2) + j % 2 * 8];
      const int d = k * 16 + (coded ? (lane & 3) * 4 + j / 2 : (lane & 3) * 2 + j / 2 * 8);
      const float* q = p.q + (size_t)place.x * p.ldq + place.y * dim;
      auto number = [&](int d) { return place.x >= 0 && (latent || d < dim) ? q[d] : 0.0f; };
      v[j] = pack<type>(number(d), number(d + 1 + coded));
    }
    store16(queries + i * 512, v);
  }

  const int value = from_value + warp * OWN;  // the first that the warp has
  const bool have = value < V;
  Softmax mine;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = places[warp % TILES * 16 + i * 8 + (lane >> 2)].x;
    mine.position[i] = row < 0 ? -1 : p.positions[row];
    mine.part[i] = {NEG_INF, 0.0f};
  }
  Rows<OWN> y[TILES];
#pragma unroll
  for (int m = 0; m < TILES; m++) y[m] = Rows<OWN>(p, row0, units, group, first + m * 16);
  u32 stage = shared_address(memory), other = stage + (split.stages - 1) * in.stage;
  bool behind = split.stages == 2;  // no tile has been copied that is to be computed
#pragma unroll 1
  for (;;) {
    __syncthreads();  // what was computed there last is not needed any more
    if (ahead <= to) {
      fetch(ahead, other);
      ahead = next(ahead);
      if (ahead <= to) find(ahead);
    }
    // All groups of copies but one are waited for, which is empty where there is one stage.
#pragma unroll 1
    for (int i = split.stages; i < 3; i++) copies_commit();
    const u32 last = stage;
    stage = other;
    other = last;
    if (behind) {
      behind = false;
      continue;
    }
    copies_wait<1>();
    __syncwarp();  // of the tile a warp now reads what it has copied itself

    // The scores of the warp's positions, in two tiles of 8.
    float s[TILES][2][CHAINS][4];
#pragma unroll
    for (int i = 0; i < TILES * 2 * CHAINS * 4; i++) (&s[0][0][0][0])[i] = 0.0f;
    u32 keys = other + (own + (lane & 7) + (lane >> 4) * 8) * in.pitch + (lane >> 3 & 1) * 16;
    u32 query = queries;
#pragma unroll 2
    for (int c = 0; c < wide / 32; c++) {
      auto score = [&](int k, const u32* b) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          u32 a[4];
          load16(a, query + (m * (wide / 16) + k) * 512);
          multiply<type>(s[m][0][k % CHAINS], a, b[0], b[1]);
          multiply<type>(s[m][1][k % CHAINS], a, b[2], b[3]);
        }
      };
#pragma unroll
      for (int k = 0; k < 2; k += 1 + coded) {
        u32 b[4];
        matrices4(b, keys + k * 16 * M::SIZE);
        if constexpr (coded) {
          u32 n[2][4];
#pragma unroll
          for (int i = 0; i < 4; i++)
            unpack<type>(n[i % 2][i / 2 * 2], n[i % 2][i / 2 * 2 + 1], b[i], split.codes);
          score(k, n[0]);
          score(k + 1, n[1]);
        } else {
          score(k, b);
        }
      }
      keys += 32 * M::SIZE;
      query += 2 * 512;
    }
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          sum[i] = s[m][n][0][i];
          if (CHAINS == 2) sum[i] += s[m][n][1 % CHAINS][i];
          if (!coded) sum[i] = __fmul_rn(sum[i], p.scale);
        }
        if (coded) times(sum, other + in.scales + (own + n * 8 + (lane & 3) * 2) * 4,
                         split.codes.factor * p.scale);
        store16(scores + m * M::SCORES + (warp * 2 + n) * 512, (const u32*)sum);
      }
    if (p.cap > 0.0f)
#pragma unroll 1
      for (int i = 0; i < TILES * 8; i++) {
        const u32 place = scores + i / 8 * M::SCORES + warp * 1024 + i / 4 % 2 * 512 + i % 4 * 4;
        float v;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(place) : "memory");
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(place), "f"(capped(v, p.cap)) : "memory");
      }
    __syncthreads();

    // A warp makes the weights of a tile of rows.
    const bool ends = ((tile + 1) & (each - 1)) == 0 || tile == to;
    if (warp < TILES) {
      float w[TILE / 8][4], alpha[2];
#pragma unroll
      for (int n = 0; n < TILE / 8; n++) load16((u32*)w[n], scores + warp * M::SCORES + n * 512);
      mine.weigh_scores(w, alpha, p, tile, mine.all(p, tile));
      if (coded)
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
          times(w[n], other + in.scales + ((KINDS - 1) * TILE + n * 8 + (lane & 3) * 2) * 4,
                split.codes.factor);
#pragma unroll
      for (int k = 0; k < TILE / 16; k++) {
        u32 a[4];
        weights<type>(a, w, k);
        store16(weighed + warp * M::WEIGHTS + k * 512, a);
      }
      store16(sums + warp * M::SUMS, (const u32*)mine.part);
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                   ::"r"(alphas + warp * M::ALPHAS), "f"(alpha[0]), "f"(alpha[1]) : "memory");
      if (ends) mine.part[0] = mine.part[1] = {NEG_INF, 0.0f};
    }
    __syncthreads();

    // The outputs of the warp's dimensions.
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      float alpha[2];
      load8((u32*)alpha, alphas + m * M::ALPHAS);
      y[m].relative(alpha);
    }
    const int pitch = latent ? in.pitch : M::PITCH;
    u32 values = other + in.values + warp * OWN * M::SIZE;
    values += coded ? lane * pitch : (lane & 15) * pitch + (lane >> 4) * 16;
#pragma unroll 1
    for (int k = 0; have && k < TILE / 16; k += 1 + coded) {
      u32 a[TILES][1 + coded][4];
#pragma unroll
      for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int h = 0; h < 1 + coded; h++)
          load16(a[m][h], weighed + m * M::WEIGHTS + (k + h) * 512);
      }
      auto add = [&](int h, int n, const u32* b) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          multiply<type>(y[m].o[n], a[m][h], b[0], b[1]);
        }
      };
#pragma unroll
      for (int n = 0; n < OWN / 8; n += 2) {
        u32 b[4];
        matrices4_transposed(b, values + n * 8 * M::SIZE);
        if constexpr (coded) {
          u32 even[4], odd[4];
#pragma unroll
          for (int i = 0; i < 4; i++) unpack<type>(even[i], odd[i], b[i], split.codes);
#pragma unroll
          for (int h = 0; h < 2; h++) {
            add(h, n, even + 2 * h);
            add(h, n + 1, odd + 2 * h);
          }
        } else {
          add(0, n, b);
          add(0, n + 1, b + 2);
        }
      }
      values += 16 * (1 + coded) * pitch;
    }
    if (ends) {
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        load16((u32*)y[m].part, sums + m * M::SUMS);
        if (!p.parts) {
          y[m].fold();
          continue;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int2 place = places[m * 16 + i * 8 + (lane >> 2)];
          if (place.x < 0 || !have) continue;
          const size_t at =
              ((size_t)place.x * p.heads + place.y) * p.segments + (tile >> split.segment);
          if (value == 0 && (lane & 3) == 0) ((State*)p.limits)[at] = y[m].part[i];
#pragma unroll
          for (int n = 0; n < OWN / 8; n++)
            if (latent || value + pair_at<coded>(n) < V)
              *(float2*)(p.parts + at * V + value + pair_at<coded>(n)) =
                  pair<coded>(y[m].o, i, n);
        }
        y[m].begin();
      }
    }
    tile = next(tile);
    if (tile > to) break;
  }
  if (p.parts) return;
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int2 place = places[m * 16 + i * 8 + (lane >> 2)];
      if (place.x < 0 || !have) continue;
      const float f = finish(y[m].whole[i], p.sinks, place.y);
      const size_t at = (size_t)place.x * p.ldy + place.y * V + value;
#pragma unroll
      for (int n = 0; n < OWN / 8; n++) {
        if (!latent && value + pair_at<coded>(n) >= V) break;
        float2 v = pair<coded>(y[m].out, i, n);
        v = {__fmul_rn(v.x, f), __fmul_rn(v.y, f)};
        *(float2*)(p.y + at + pair_at<coded>(n)) = v;
        *(u32*)(p.half + at + pair_at<coded>(n)) = pack<type>(v.x, v.y);
      }
    }
  }
}

#define SPLIT(name, type, blocks, ...)                                                  \
  KERNEL __launch_bounds__(128, blocks) name(const __grid_constant__ Split p) {     \
    attend_split<type, __VA_ARGS__>(p);                                             \
  }

SPLIT(split_codes_bf16, BF16, 3, 2, 32, false, true)
SPLIT(split_bf16, BF16, 3, 2, 32, false, false)
SPLIT(split_latent_codes_bf16, BF16, 2, 1, 128, true, true)
SPLIT(split_latent_bf16, BF16, 2, 1, 128, true, false)
SPLIT(split_codes_f16, F16, 3, 2, 32, false, true)
SPLIT(split_f16, F16, 3, 2, 32, false, false)
SPLIT(split_latent_codes_f16, F16, 2, 1, 128, true, true)
SPLIT(split_latent_f16, F16, 2, 1, 128, true, false)
