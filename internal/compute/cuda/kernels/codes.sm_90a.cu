// Products of many rows and quantised weights on Hopper: codes are in shared memory as they are, and
// each warp makes of them the operand of 16 output features, in registers. The order of every sum is
// that of gemm.cu.
#include "codes.cuh"
#include "groups.cuh"

struct CodesGroups {
  TensorMap x;        // [rows][chunks * kpad], in boxes of 128
  Tiled t;
  const void* w;      // tiles of codes
  const float* sums;  // of inputs, [chunks][groups][ldsums] of rows, where there are offsets
  int ldsums;
  int lines;          // groups of a chunk at most
  int stages;         // of the ring
  int whole;          // a block computes all chunks of a tile, and adds them
  Quantised q;
};

// Step is what a stage of the ring has: inputs, codes, and the factors of groups that end there: as
// products end in pairs, two groups at most.
template <int bits>
struct Step {
  enum {
    FEATURES = COMPUTING * 64, ROWS = 128, TILE = 128 * bits,
    CODES = ROWS * 128, SCALES = CODES + FEATURES / 16 * TILE, OFFSETS = SCALES + 2 * FEATURES * 4,
    SUMS = OFFSETS + 2 * FEATURES * 4, BYTES = SUMS + 2 * ROWS * 4
  };
};

// STAGES is how many a ring may have.
enum { STAGES = 8 };

// Chunk is where a block computes: the input features of a chunk, and its groups.
struct Chunk {
  int steps, pairs;  // of 64 features, and of two products
  int first;         // group
  Groups now;

  DI Chunk(const CodesGroups& p, int chunk)
      : steps((p.t.kpad + 63) / 64), pairs(p.t.kpad / 32), first(0), now(p.q, chunk * p.t.kpad) {
    first = now.row;
  }

  // ends says after which products of the next step a group ends: the last one ends all.
  DI int ends(int step) {
    const int bits = now.step();
    if (step < steps - 1) return bits;
    const int end = 1 << (2 * pairs - 1) % 4;
    return bits & end - 1 | end;
  }
};

// copy_codes copies what a block multiplies, by one warp.
template <int bits>
DI void copy_codes(const CodesGroups& p, const Tile& tile, int chunk, const Ring<STAGES>& ring,
                   u32 stages, Spot& spot) {
  typedef Step<bits> S;
  const Tiled& t = p.t;
  const int lane = threadIdx.x & 31;
  const u64 scale = p.q.scales ? p.q.scales[tile.expert] : p.q.scale;
  const u64 offset = p.q.offsets ? p.q.offsets[tile.expert] : p.q.offset;
  Chunk at(p, chunk);
  // What a lane copies: codes of 16 features, the factors of a group, or inputs.
  const int some = min(t.out - tile.f0 + 15 >> 4, S::FEATURES / 16);  // of 16 features
  const int kind = lane >> 3, group = lane & 7;
  const u8* from = nullptr;
  u32 to = S::CODES + lane * S::TILE;
  int bytes = S::TILE, row = S::TILE;
  bool ours = lane < some;
  if (kind == 0) {
    const u8* w = (const u8*)(t.experts ? (const void*)t.experts[tile.expert] : p.w);
    from = w + (size_t)((tile.f0 / 16 + lane) * t.chunks + chunk) * at.steps * S::TILE;
  } else {
    const u64 address = kind == 1 ? scale : offset;
    const int half = kind < 3 ? address & 1 : 0;
    if (kind < 3) {
      row = p.q.ldscale * 4 >> half;
      from = (const u8*)(address & ~(u64)1) + (size_t)at.first * row + (tile.f0 * 4 >> half);
      to = (kind == 1 ? S::SCALES : S::OFFSETS) + group * S::FEATURES * 4;
      bytes = some * 64 >> half;
    } else {
      row = p.ldsums * 4;
      from = (const u8*)(p.sums + (size_t)chunk * p.lines * p.ldsums + tile.r0);
      to = S::SUMS + group * S::ROWS * 4;
      bytes = S::ROWS * 4;
    }
    from += (size_t)group * row;
    ours = group < 2 && (kind == 1 || offset);
  }
  const int codes = some * S::TILE + S::ROWS * 128;
  int factors = some * 64 >> (scale & 1);
  if (offset) factors += (some * 64 >> (offset & 1)) + S::ROWS * 4;
#pragma unroll 1
  for (int step = 0; step < at.steps; step++, spot.next(p.stages)) {
    const u32 stage = stages + spot.at * S::BYTES, full = ring.full + 8 * spot.at;
    const int groups = __popc(at.ends(step));
    ring.wait_empty(spot);
    if (lane == 0) barrier_expect(full, codes + groups * factors);
    __syncwarp();
    if (lane == 31) copy_box(stage, &p.x, chunk * t.kpad + step * 64, tile.r0, full);
    if (ours && (kind == 0 || group < groups)) copy_bytes(stage + to, from, bytes, full);
    from += kind == 0 ? row : groups * row;
  }
}

// Operand is what a warp multiplies by, of two products.
template <int type, int bits, int form>
struct Operand {
  u32 a[2][4];

  // make makes it of the codes of a pair of a stage; there are none behind the last feature.
  DI void make(u32 stage, int pair, bool there, u32 shift, const u32* pairs) {
    constexpr int WORDS = bits / 2;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 codes[WORDS];
    const u32 at = stage + Step<bits>::CODES + warp * Step<bits>::TILE + (pair * 32 + lane) * (2 * bits);
#pragma unroll
    for (int i = 0; i < WORDS; i++) codes[i] = 0;
    if (there) {
      if (bits == 4) load8(codes, at);
      else load16(codes, at);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) unpacked<type, form>(a[i], codes + i * WORDS / 2, shift, pairs);
  }

  // settle has the compiler make it here: in registers that what follows is not made in, which
  // products under way read.
  DI void settle() {
#pragma unroll
    for (int i = 0; i < 8; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
  }
};

// sum_codes computes the sums of a chunk: while a pair of products is under way, a warp makes the
// operand of the next one.
template <int type, int bits, int form, bool offsets>
DI void sum_codes(const CodesGroups& p, float (&c)[16][4], const Tile& tile, int chunk,
                  const Ring<STAGES>& ring, u32 stages, const u32* table, Spot& spot) {
  typedef Step<bits> S;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u64 scale = p.q.scales ? p.q.scales[tile.expert] : p.q.scale;
  const u64 offset = p.q.offsets ? p.q.offsets[tile.expert] : p.q.offset;
  const bool there = tile.f0 + warp * 16 < p.t.out;
  Chunk at(p, chunk);
  float part[16][4];
#pragma unroll
  for (int i = 0; i < 64; i++) c[i / 4][i % 4] = part[i / 4][i % 4] = 0.0f;
  Operand<type, bits, form> now, next;
  ring.wait_full(spot);
  next.make(stages + spot.at * S::BYTES, 0, there, p.q.shift, table);
  int ends = at.ends(0);
#pragma unroll 1
  for (int pair = 0; pair < at.pairs; pair++) {
    const int half = pair & 1;
    const bool last = pair + 1 == at.pairs;
    const u32 stage = stages + spot.at * S::BYTES;
    const Spot before = spot;
    now = next;
    now.settle();
    groups_begin(part);
#pragma unroll
    for (int i = 0; i < 2; i++)
      multiply_group<type>(part, now.a[i], descriptor(stage + (half * 2 + i) * 32, 16));
    groups_commit();
    if (!last) {
      if (half) {
        spot.next(p.stages);
        ring.wait_full(spot);
      }
      next.make(stages + spot.at * S::BYTES, half ^ 1, there, p.q.shift, table);
    }
    groups_end(part);
    if (ends >> (2 * half + 1) & 1) {
      const int group = half && ends & 2;
      const u32 factors = stage + S::SCALES + group * S::FEATURES * 4;
      const u32 sums = stage + S::SUMS + group * S::ROWS * 4 + (lane & 3) * 8;
      const int f = warp * 16 + (lane >> 2);
      float s[2] = {0.0f, 0.0f}, o[2] = {0.0f, 0.0f};
#pragma unroll
      for (int h = 0; h < 2; h++)
        if (there) {
          s[h] = factor_at(factors, f + 8 * h, scale & 1);
          if (offsets) o[h] = factor_at(factors + 2 * S::FEATURES * 4, f + 8 * h, offset & 1);
        }
#pragma unroll
      for (int n = 0; n < 16; n++) {
        u32 inputs[2];
        if (offsets) load8(inputs, sums + n * 32);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          c[n][i] = __fmaf_rn(s[i / 2], part[n][i], c[n][i]);
          if (offsets) c[n][i] = __fmaf_rn(o[i / 2], __uint_as_float(inputs[i & 1]), c[n][i]);
          part[n][i] = 0.0f;
        }
      }
    }
    if (half || last) ring.release(before);
    if (half && !last) ends = at.ends(pair / 2 + 1);
  }
  spot.next(p.stages);
}

// compute_codes computes what a block does, chunks that it adds as tree does: the first of two waits
// in shared memory, the sum of two behind y, that of four in y, where the thread reads what it wrote.
template <int type, int bits, int form, bool offsets>
DI void compute_codes(const CodesGroups& p, const Tiling<128, 128, EXPERTS>& tiling,
                      const Ring<STAGES>& ring, u32 stages, const u32* table) {
  const Tiled& t = p.t;
  const u32 kept = stages + p.stages * Step<bits>::BYTES;
  const int count = tiling.count(t), each = p.whole ? t.chunks : 1, turns = count * (t.chunks / each);
  Spot spot;
#pragma unroll 1
  for (int turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const Tile tile = tiling.find(t, turn % count);
    const int from = turn / count;
#pragma unroll 1
    for (int n = 0; n < each; n++) {
      float c[16][4];
      sum_codes<type, bits, form, offsets>(p, c, tile, from + n, ring, stages, table, spot);
      float* y = t.y + (p.whole ? 0 : (size_t)from * t.chunk_stride);
      bool add = t.add;
      if (p.whole) {
        if (!(n & 1)) {
          keep(c, kept);
          continue;
        }
        found(c, kept);
        if (n & 2) tile.found(t, c, y + t.chunk_stride);
        else if (n + 1 < each) y += t.chunk_stride;
        add = n > 3 && (n & 2);
      }
      tile.store(t, c, y, add);
    }
  }
}

// codes_groups computes 64 output features per warp group, of 128 rows of x, by the kernel for what
// codes stand for.
template <int type, int bits>
DI void codes_groups(const CodesGroups& p) {
  extern __shared__ __align__(1024) u8 memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  __shared__ int ends[EXPERTS];
  __shared__ u32 table[256];
  const u32 stages = shared_address(memory);
  const int warp = threadIdx.x >> 5;
  const Tiling<128, 128, EXPERTS> tiling(p.t, ends);
  const Ring<STAGES> ring(barriers);
  if (bits == 4 && p.q.form == TABLE) pair_up<type, BLOCK>(table, p.q);
  __syncthreads();

  if (warp >= COPYING * 4) {
    registers_down<56>();
    if (warp > COPYING * 4) return;
    const int count = tiling.count(p.t), turns = count * p.t.chunks;
    const int each = p.whole ? p.t.chunks : 1;
    Spot spot;
#pragma unroll 1
    for (int turn = blockIdx.x; turn < turns / each; turn += gridDim.x) {
      const Tile tile = tiling.find(p.t, turn % count);
#pragma unroll 1
      for (int n = 0; n < each; n++)
        copy_codes<bits>(p, tile, turn / count + n, ring, stages, spot);
    }
    return;
  }

  registers_up<224>();
  auto compute = [&](auto form) {
    compute_codes<type, bits, decltype(form)::value, decltype(form)::offsets>(p, tiling, ring, stages,
                                                                             table);
  };
  if (bits == 4 && p.q.form == LINEAR && p.sums) compute(Form<LINEAR, true>());
  else if (bits == 4 && p.q.form == LINEAR) compute(Form<LINEAR, false>());
  else if (bits == 4 && p.q.form == E2M1) compute(Form<E2M1, false>());
  else if (bits == 4 && p.sums) compute(Form<TABLE, true>());
  else if (bits == 4) compute(Form<TABLE, false>());
  else if (p.q.form == E4M3) compute(Form<E4M3, false>());
  else if (p.sums) compute(Form<INTEGERS, true>());
  else compute(Form<INTEGERS, false>());
}

#define CODES(name, ...)                                                           \
  KERNEL __launch_bounds__(BLOCK, 1) name(const __grid_constant__ CodesGroups p) { \
    codes_groups<__VA_ARGS__>(p);                                                  \
  }

CODES(gemm_groups_bf16_codes4, BF16, 4)
CODES(gemm_groups_bf16_codes8, BF16, 8)
CODES(gemm_groups_f16_codes4, F16, 4)
CODES(gemm_groups_f16_codes8, F16, 8)

struct SumInputs {
  const u16* x;   // [rows][ldx]
  float* y;       // [chunks][lines][ldy] of rows; zero behind the last one
  int rows, kpad, chunks, ldx, ldy;
  int lines;      // groups of a chunk at most
  Quantised q;
};

// sum_inputs sums the inputs of 8 rows of each group, as gemm.cu does beside its products.
template <int type>
DI void sum_inputs(const SumInputs& p) {
  const int lane = threadIdx.x & 31, chunk = blockIdx.z, line = blockIdx.y;
  const int r0 = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * 8, row = r0 + (lane >> 2);
  if (r0 >= p.ldy) return;
  const int begin = chunk * p.kpad, group = (p.q.lead + begin) / p.q.group + line;
  const int from = max(group * p.q.group - p.q.lead, begin);
  const int to = p.q.group == ALL ? begin + p.kpad : min((group + 1) * p.q.group - p.q.lead, begin + p.kpad);
  const u32* x = (const u32*)(p.x + (size_t)row * p.ldx) + (lane & 3);
  const u32 one = pack<type>(1, 1), ones[4] = {one, one, one, one};
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
  for (int k = from; k < to; k += 16) {
    const u32 b0 = load_now(x + k / 2, row < p.rows), b1 = load_now(x + k / 2 + 4, row < p.rows);
    multiply<type>(c, ones, b0, b1);
  }
  if (lane < 4)
    *(float2*)(p.y + ((size_t)chunk * p.lines + line) * p.ldy + r0 + lane * 2) = make_float2(c[0], c[1]);
}

KERNEL __launch_bounds__(128) sum_inputs_bf16(const __grid_constant__ SumInputs p) {
  sum_inputs<BF16>(p);
}
KERNEL __launch_bounds__(128) sum_inputs_f16(const __grid_constant__ SumInputs p) {
  sum_inputs<F16>(p);
}
