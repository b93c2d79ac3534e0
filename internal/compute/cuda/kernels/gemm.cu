// Matrix products y = x·Wᵀ of numbers of 16 bits, summed in float.
//
// W is the first operand of the tensor cores' products, its output features their rows, whatever
// the number of rows of x: so every element of y is one chain of products of 16 in the order of its
// input features, from 0 on, in each chunk. Its bits do not depend on the tile that computed it.
//
// A quantised W is codes of 4 or 8 bits, of which each thread makes the numbers of 16 bits that it
// multiplies by. The chain of a chunk takes a group of input features after the other: their
// products are a chain from 0 on, which is multiplied by the group's scale, then their inputs' sum,
// by its offset.
#include "codes.cuh"

struct Gemm {
  const void* w;             // [out][chunks][kpad], zero behind a chunk's last feature; or tiles of codes
  const u64* experts;        // of grouped products the weights; null for none
  const int* first;          // where the rows of each expert begin in those of y, and their end
  const int* picked;         // rows of x by rows of y; null is the same
  const u16* x;              // [rows][ldx]; chunk c begins at column in*c/chunks
  const float* bias;         // of each output feature; null for none
  const u64* biases;         // of each expert; null for none
  float* y;                  // chunk c is chunk_stride after the one before
  u64 chunk_stride;
  int out, rows, in, kpad, chunks, ldx, ldy;
  int unit;                  // how many steps a stage has room for
  int add;                   // to what y has
  int aligned;               // all rows and chunks of x, and groups, begin at multiples of 16 bytes
  Quantised q;
};

// A tile of shared memory has rows of 64 numbers, 128 bytes. Of a row the 16 bytes number c lie at
// c ^ (row & 7), so that ldmatrix reads without bank conflicts.
DI u32 place(u32 row, u32 c) { return row * 128u + ((c ^ (row & 7u)) << 4); }

// stream16 is copy16 of what is read once, front to back: memory sends what follows, too.
DI void stream16(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
               ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Factors is where a thread copies 16 bytes of scales, or offsets, from: of a group, then the next.
struct Factors {
  const u8* from;
  int row;     // bytes of a group's
  bool there;  // the output features are, else zeros are copied
  bool half;   // they are float16
  bool ours;   // the thread has some to copy

  DI Factors(u64 address, const Quantised& q, int group, int f0, int features) {
    half = address & 1;
    const int f = threadIdx.x * 4 << half;
    ours = address && f < features;
    there = f0 + f < q.ldscale;
    row = q.ldscale * 4 >> half;
    from = (const u8*)(address & ~(u64)1) + (size_t)group * row + (there ? (f0 + f) * 4 >> half : 0);
  }

  DI void copy(u32 to, int groups, int features) {
    if (!ours) return;
#pragma unroll 1
    for (int i = 0; i < groups; i++) {
      copy16(to + i * features * 4 + threadIdx.x * 16, from, there ? 16 : 0);
      from += row;
    }
  }
};

template <bool some>
struct Offsets {
  enum { value = some };
};

// tile computes FEATURES output features of ROWS rows of x: each of WF by WR warps computes MT
// tiles of 16 features by NT tiles of 8 rows. A step is 64 input features. While a unit of steps is
// computed, those of the next STAGES-1 units are on their way: so few blocks may ask memory for as
// much at a time as many. A quantised W is [16 features][chunk][64 input features], of which the
// threads of a warp have, for two products and then for two more, the 8 codes that each multiplies
// by in the one, and in the other; 0 where there are none.
template <int type, int bits, int WF, int WR, int MT, int NT, int STAGES>
DI void tile(const Gemm& p) {
  constexpr int FEATURES = WF * MT * 16, ROWS = WR * NT * 8, THREADS = WF * WR * 32;
  constexpr bool CODES = bits < 16;
  constexpr int TILE = 128 * bits;  // bytes of 16 by 64 weights
  constexpr int X = FEATURES / 16 * TILE, SCALES = X + ROWS * 128, OFFSETS = SCALES + FEATURES * 16;
  constexpr int STEP = CODES ? OFFSETS + FEATURES * 16 : SCALES;
  // A thread copies so many pieces of 16 bytes of a step's weights, and of its inputs; inputs and
  // plain weights are of rows that are so far apart.
  constexpr int OURS = X / 16 / THREADS, XOURS = (ROWS * 8 + THREADS - 1) / THREADS;
  constexpr int APART = THREADS / 8;
  extern __shared__ __align__(128) u8 memory[];
  __shared__ u32 pairs[256];
  const u32 base = shared_address(memory);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int wf = warp % WF, wr = warp / WF;
  const int expert = blockIdx.z / p.chunks, chunk = blockIdx.z % p.chunks;
  const int f0 = blockIdx.x * FEATURES;
  int r0 = blockIdx.y * ROWS, end = p.rows;
  const void* w = p.w;
  u64 scale = p.q.scale, offset = p.q.offset;
  const float* bias = p.bias;
  if (p.experts) {
    r0 += p.first[expert];
    end = p.first[expert + 1];
    w = (const void*)p.experts[expert];
    if (p.biases) bias = (const float*)p.biases[expert];
    if (CODES) scale = p.q.scales[expert];
    if (CODES && p.q.offsets) offset = p.q.offsets[expert];
  }
  if (r0 >= end) return;
  int begin = (int)((u64)p.in * chunk / p.chunks);
  const int skip = CODES ? skipped(p.q.group, p.q.lead, begin) : 0;
  begin -= skip;
  const int width = (int)((u64)p.in * (chunk + 1) / p.chunks) - begin;
  const int steps = (p.kpad + 63) / 64;
  Groups ahead(p.q, begin), now = ahead;
  const int last = (p.q.lead + begin + width - 1) / p.q.group;
  if (bits == 4 && p.q.form == TABLE) pair_up<type, THREADS>(pairs, p.q);

  // Where the thread's pieces come from, of the step that is fetched next, and where they go to.
  // Those that are not there are copied as zeros from others' places.
  const int piece = tid & 7, row = tid >> 3;
  const u32 to = place(row, piece);
  const u16* inputs[XOURS];
  bool input_there[XOURS];
#pragma unroll
  for (int j = 0; j < XOURS; j++) {
    int r = r0 + row + j * APART;
    input_there[j] = r < end && row + j * APART < ROWS;
    if (!input_there[j]) r = r0;
    inputs[j] = p.x + begin + (size_t)(p.picked ? p.picked[r] : r) * p.ldx + piece * 8;
  }
  const u8* weights[OURS];
  bool weight_there[OURS];
#pragma unroll
  for (int j = 0; j < OURS; j++) {
    int i = tid + j * THREADS, f = CODES ? f0 + i / (TILE / 16) * 16 : f0 + row + j * APART;
    weight_there[j] = f < p.out;
    if (!weight_there[j]) f = f0;
    size_t at = CODES ? ((size_t)(f / 16 * p.chunks + chunk) * steps * TILE + i % (TILE / 16) * 16)
                      : 2 * ((size_t)(f * p.chunks + chunk) * p.kpad + piece * 8);
    weights[j] = (const u8*)w + at;
  }
  Factors scales(CODES ? scale : 0, p.q, ahead.row, f0, FEATURES);
  Factors offsets(CODES ? offset : 0, p.q, ahead.row, f0, FEATURES);

  // inputs_at copies 8 columns of x, of which some may lie beyond the chunk, or not begin at a
  // multiple of 16 bytes.
  auto inputs_at = [&](u32 at, const u16* from, bool there, int k) {
    const int n = there ? min(max(width - k, 0), 8) : 0, before = skip - k;
    if (p.aligned) {
      const bool some = n > 0 && before <= 0;
      copy16(at, some ? from : p.x, some ? 2 * n : 0);
      return;
    }
    u32 v[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (i >= before && i < n) v[i >> 1] |= (u32)from[i] << (16 * (i & 1));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
  };

  // Steps up to here have all of their features.
  const int whole = CODES ? width : min(width, p.kpad);

  auto fetch = [&](int step, u32 at) {
    const bool simple = p.aligned && step * 64 >= skip && step * 64 + 64 <= whole;
#pragma unroll
    for (int j = 0; j < OURS; j++) {
      bool there = weight_there[j] && (CODES || simple || step * 64 + piece * 8 < p.kpad);
      stream16(CODES ? at + (tid + j * THREADS) * 16 : at + to + j * APART * 128,
               CODES || there ? weights[j] : (const u8*)w, there ? 16 : 0);
      weights[j] += CODES ? TILE : 128;
    }
    if (CODES) {
      // Those of groups that end in the step, and of the last one.
      const int first = ahead.row;
      int groups = __popc(ahead.step());
      if (step == steps - 1) groups = last - first + 1;
      if (groups > 0) {
        scales.copy(at + SCALES, groups, FEATURES);
        offsets.copy(at + OFFSETS, groups, FEATURES);
      }
    }
#pragma unroll
    for (int j = 0; j < XOURS; j++) {
      if (row + j * APART >= ROWS) break;
      const u32 xat = at + X + to + j * APART * 128;
      if (simple) copy16(xat, inputs[j], input_there[j] ? 16 : 0);
      else inputs_at(xat, inputs[j], input_there[j], step * 64 + piece * 8);
      inputs[j] += 64;
    }
  };

  float c[MT][NT][4], part[CODES ? MT : 1][CODES ? NT : 1][4], sums[CODES ? NT : 1][4];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int m = 0; m < MT; m++) {
        c[m][n][i] = 0.0f;
        if (CODES) part[CODES ? m : 0][CODES ? n : 0][i] = 0.0f;
      }
      sums[CODES ? n : 0][i] = 0.0f;
    }
  const u32 ones[4] = {pack<type>(1, 1), pack<type>(1, 1), pack<type>(1, 1), pack<type>(1, 1)};

  // scaled adds what the products of a group came to, which is then zero.
  auto scaled = [&](auto form, u32 factors) {
    constexpr bool with_offsets = decltype(form)::offsets;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int f = (wf * MT + m) * 16 + (lane >> 2) + 8 * h;
        const float s = factor_at(factors, f, scales.half);
        const float o = with_offsets ? factor_at(factors + FEATURES * 16, f, offsets.half) : 0.0f;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; i++) {
            float* y = &c[m][n][i];
            float* sum = &part[CODES ? m : 0][CODES ? n : 0][i];
            *y = __fmaf_rn(s, *sum, *y);
            if (with_offsets) *y = __fmaf_rn(o, sums[CODES ? n : 0][i & 1], *y);
            *sum = 0.0f;
          }
      }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[CODES ? n : 0][i] = 0.0f;
  };

  // multiplied adds product k of a step, of inputs at xt. Of 8 rows the inputs of two products are
  // loaded at once, by the first.
  u32 both[4];
  auto multiplied = [&](auto form, const u32 (&a)[MT][4], u32 xt, int k) {
    auto product = [&](int n, u32 b0, u32 b1) {
#pragma unroll
      for (int m = 0; m < MT; m++)
        multiply<type>(CODES ? part[CODES ? m : 0][CODES ? n : 0] : c[m][n], a[m], b0, b1);
      if (decltype(form)::offsets) multiply<type>(sums[CODES ? n : 0], ones, b0, b1);
    };
    if (NT == 1) {
      if (k % 2 == 0) matrices4(both, xt + place(wr * 8 + (lane & 7), k * 2 + (lane >> 3)));
      product(0, both[k % 2 * 2], both[k % 2 * 2 + 1]);
    } else {
#pragma unroll
      for (int n = 0; n + 1 < NT; n += 2) {
        u32 b[4];
        matrices4(b, xt + place((wr * NT + n) * 8 + (lane & 7) + ((lane >> 4) << 3),
                                k * 2 + ((lane >> 3) & 1)));
        product(n, b[0], b[1]);
        product(n + 1, b[2], b[3]);
      }
    }
  };

  // plain adds the products of a step of plain weights.
  auto plain = [&](u32 wt, int products) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      if (k >= products) break;
      u32 a[MT][4];
#pragma unroll
      for (int m = 0; m < MT; m++)
        matrices4(a[m], wt + place((wf * MT + m) * 16 + (lane & 15), k * 2 + (lane >> 4)));
      multiplied(Form<LINEAR, false>(), a, wt + X, k);
    }
  };

  const int last_end = 1 << (p.kpad - 1) % 64 / 16;  // the last product of the last step

  // coded adds the products of a step of codes. Behind the last feature of a chunk all are zeros.
  auto coded = [&](auto form, u32 wt, bool final) {
    constexpr int WORDS = CODES ? bits / 2 : 4;  // of a thread's codes, for two products
    // There are registers for one product's codes only.
    constexpr bool ALONE = bits == 8 && MT * NT > 8;
    const int left = final ? last - now.row + 1 : 4;
    int ends = now.step();
    if (final) ends = left > 0 ? (ends & (last_end - 1)) | last_end : 0;
    int group = 0;
#pragma unroll MT * NT > 1 ? 1 : 2
    for (int k = 0; k < 4; k += 2) {
      u32 codes[MT][WORDS];
#pragma unroll ALONE ? 1 : 2
      for (int i = 0; i < 2; i++) {
        u32 a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
          const u32 at = wt + (wf * MT + m) * TILE + (k * 16 + lane) * (2 * bits);
          if (bits == 4 && i == 0) load8(codes[m], at);
          if (ALONE) load8(codes[m], at + 8 * i);
          if (bits == 8 && !ALONE && i == 0) load16(codes[m], at);
          unpacked<type, decltype(form)::value>(a[m], codes[m] + (ALONE ? 0 : i * WORDS / 2),
                                                p.q.shift, pairs);
        }
        multiplied(form, a, wt + X, k + i);
        if (ends >> (k + i) & 1) scaled(form, wt + SCALES + min(group++, left - 1) * FEATURES * 4);
      }
    }
  };

  // Those of e2m1 and e4m3 have no offsets.
  auto by_form = [&](auto offsets, u32 wt, bool final) {
    constexpr bool some = decltype(offsets)::value;
    if (bits == 4 && p.q.form == LINEAR) coded(Form<LINEAR, some>(), wt, final);
    else if (bits == 4 && p.q.form == E2M1) coded(Form<E2M1, false>(), wt, final);
    else if (bits == 4) coded(Form<TABLE, some>(), wt, final);
    else if (p.q.form == E4M3) coded(Form<E4M3, false>(), wt, final);
    else coded(Form<INTEGERS, some>(), wt, final);
  };

  // The first units are only fetched. Of one stage the steps lie behind each other, and so do the
  // stages, in a ring.
  const int unit = p.unit, units = (steps + unit - 1) / unit;
  const u32 stage = unit * STEP, end_of_ring = base + STAGES * stage;
  u32 arriving = base, current = base;
#pragma unroll 1
  for (int u = 1 - STAGES; u < units; u++) {
    if (u >= 0) {
      copies_wait<STAGES - 2>();
      __syncthreads();
    }
    const int next = (u + STAGES - 1) * unit;
#pragma unroll 1
    for (int i = 0; i < min(unit, steps - next); i++) fetch(next + i, arriving + i * STEP);
    copies_commit();
    if ((arriving += stage) == end_of_ring) arriving = base;
    if (u < 0) continue;
#pragma unroll 1
    for (int i = 0; i < min(unit, steps - u * unit); i++) {
      const int step = u * unit + i, products = (p.kpad - step * 64) / 16;
      const u32 wt = current + i * STEP;
      if (!CODES && products >= 4) plain(wt, 4);
      else if (!CODES) plain(wt, products);
      else if (offset) by_form(Offsets<true>(), wt, step == steps - 1);
      else by_form(Offsets<false>(), wt, step == steps - 1);
    }
    if ((current += stage) == end_of_ring) current = base;
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
// of 16 features, the one of 128 is bound by the tensor cores. That of 64 has 128 features, so that
// x, which each block reads, is not as much as W; of plain weights a multiprocessor has two blocks.
#define GEMM(name, type, threads, blocks, ...)                                     \
  KERNEL __launch_bounds__(threads, blocks) name(const __grid_constant__ Gemm p) { \
    tile<type, __VA_ARGS__>(p);                                                    \
  }

GEMM(gemm8_bf16, BF16, 128, 1, 16, 4, 1, 1, 1, 5)
GEMM(gemm16_bf16, BF16, 128, 1, 16, 4, 1, 1, 2, 5)
GEMM(gemm32_bf16, BF16, 128, 1, 16, 4, 1, 1, 4, 4)
GEMM(gemm64_bf16, BF16, 256, 2, 16, 4, 2, 2, 4, 4)
GEMM(gemm128_bf16, BF16, 256, 1, 16, 4, 2, 2, 8, 3)
GEMM(gemm8_f16, F16, 128, 1, 16, 4, 1, 1, 1, 5)
GEMM(gemm16_f16, F16, 128, 1, 16, 4, 1, 1, 2, 5)
GEMM(gemm32_f16, F16, 128, 1, 16, 4, 1, 1, 4, 4)
GEMM(gemm64_f16, F16, 256, 2, 16, 4, 2, 2, 4, 4)
GEMM(gemm128_f16, F16, 256, 1, 16, 4, 2, 2, 8, 3)

GEMM(gemm8_bf16_codes4, BF16, 128, 1, 4, 4, 1, 1, 1, 5)
GEMM(gemm16_bf16_codes4, BF16, 128, 1, 4, 4, 1, 1, 2, 5)
GEMM(gemm32_bf16_codes4, BF16, 128, 1, 4, 4, 1, 1, 4, 4)
GEMM(gemm64_bf16_codes4, BF16, 256, 1, 4, 4, 2, 2, 4, 4)
GEMM(gemm128_bf16_codes4, BF16, 256, 1, 4, 4, 2, 2, 8, 3)
GEMM(gemm8_f16_codes4, F16, 128, 1, 4, 4, 1, 1, 1, 5)
GEMM(gemm16_f16_codes4, F16, 128, 1, 4, 4, 1, 1, 2, 5)
GEMM(gemm32_f16_codes4, F16, 128, 1, 4, 4, 1, 1, 4, 4)
GEMM(gemm64_f16_codes4, F16, 256, 1, 4, 4, 2, 2, 4, 4)
GEMM(gemm128_f16_codes4, F16, 256, 1, 4, 4, 2, 2, 8, 3)

GEMM(gemm8_bf16_codes8, BF16, 128, 1, 8, 4, 1, 1, 1, 5)
GEMM(gemm16_bf16_codes8, BF16, 128, 1, 8, 4, 1, 1, 2, 5)
GEMM(gemm32_bf16_codes8, BF16, 128, 1, 8, 4, 1, 1, 4, 4)
GEMM(gemm64_bf16_codes8, BF16, 256, 1, 8, 4, 2, 2, 4, 4)
GEMM(gemm128_bf16_codes8, BF16, 256, 1, 8, 4, 2, 2, 8, 3)
GEMM(gemm8_f16_codes8, F16, 128, 1, 8, 4, 1, 1, 1, 5)
GEMM(gemm16_f16_codes8, F16, 128, 1, 8, 4, 1, 1, 2, 5)
GEMM(gemm32_f16_codes8, F16, 128, 1, 8, 4, 1, 1, 4, 4)
GEMM(gemm64_f16_codes8, F16, 256, 1, 8, 4, 2, 2, 4, 4)
GEMM(gemm128_f16_codes8, F16, 256, 1, 8, 4, 2, 2, 8, 3)

struct PackCodes {
  const u8* bytes;  // [rows][in], a code each
  u32* w;           // where the tiles of the rows begin
  int rows, in, chunks, steps, bits, group, lead;
};

// pack_codes puts codes where tiles have them: a word for each thread. Rows of a last tile and
// input features that are none get 0.
KERNEL pack_codes(const __grid_constant__ PackCodes p) {
  const int each = 32 / p.bits, words = 32 * p.bits;  // of a tile
  EACH((p.rows + 15) / 16 * p.chunks * p.steps * words) {
    int t = i / words, word = i % words;
    int step = t % p.steps, chunk = t / p.steps % p.chunks, tile = t / p.steps / p.chunks;
    // A thread has its words of two products, then of the next two.
    const int own = 8 / each, both = 2 * own;
    int lane = word / both % 32, product = word / both / 32 * 2 + word % both / own;
    int start = (int)((u64)p.in * chunk / p.chunks);
    int stop = (int)((u64)p.in * (chunk + 1) / p.chunks);
    int begin = start - skipped(p.group, p.lead, start);
    u32 v = 0;
    for (int j = 0; j < each; j++) {
      // Number n of the operand. Of 4 bits the codes of a pair are 16 bits apart; of 8 bits a word
      // has two pairs, of the same output feature.
      int n = p.bits == 4 ? j : word % own * 2 + j / 2 * 4 + j % 2;
      int at = p.bits == 4 ? j % 2 * 16 + j / 2 * 4 : 8 * j;
      int row = tile * 16 + lane / 4 + (n >> 1 & 1) * 8;
      int col = begin + step * 64 + product * 16 + lane % 4 * 2 + (n & 1) + (n >> 2) * 8;
      if (row < p.rows && col >= start && col < stop) v |= (u32)p.bytes[(size_t)row * p.in + col] << at;
    }
    p.w[i] = v;
  }
}
