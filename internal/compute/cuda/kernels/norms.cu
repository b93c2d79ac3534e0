// Norms of rows and of heads. A block has a row, a warp a head: the order of each sum depends on the
// width alone.
#include "norm.cuh"

struct Norm {
  const float* x;
  const float* weight;
  const float* bias;  // null for none
  float* y;
  u16* half;          // y in 16 bits
  int width, type;
  float eps;
};

KERNEL __launch_bounds__(1024) rms_norm(const __grid_constant__ Norm p) {
  __shared__ float parts[GROUPS];
  const size_t row = (size_t)blockIdx.x * p.width;
  if (p.width % 4 == 0)
    rms_row<true>(p.x + row, p.weight, p.y + row, p.half + row, p.width, p.type, p.eps, parts);
  else
    rms_row<false>(p.x + row, p.weight, p.y + row, p.half + row, p.width, p.type, p.eps, parts);
}

struct AddNorm {
  const float* parts;  // [chunks][rows][width]
  float* sums;         // gets the sums; null for none
  float* x;            // gets them added to what it has; null for none
  const float* weight;
  float* y;            // x normalised, the sums without an x
  u16* half;           // y in 16 bits
  int chunks, rows, width, type;
  float eps;
};

// four adds 1, 2 or 4 numbers of each of a page's vectors, as tree. All are on their way together,
// for which a thread has registers; not so of 8.
template <int chunks>
DI void four(float4 (&v)[HELD], const float* p, size_t stride, const Page<true>& page) {
  float4 c[4][HELD];
#pragma unroll
  for (int i = 0; i < chunks; i++) page.near(c[i], p + i * stride);
#pragma unroll
  for (int n = 0; n < HELD; n++) {
    v[n] = c[0][n];
    if (chunks > 1) v[n] = v[n] + c[1][n];
    if (chunks > 2) v[n] = v[n] + (c[2][n] + c[3][n]);
  }
}

// make_sums is tree of a page's vectors.
template <int chunks>
DI void make_sums(float4 (&v)[HELD], const float* p, size_t stride, const Page<true>& page) {
  if constexpr (chunks < 8) {
    four<chunks>(v, p, stride, page);
  } else {
    float4 more[HELD];
    four<4>(v, p, stride, page);
    four<4>(more, p + 4 * stride, stride, page);
#pragma unroll
    for (int n = 0; n < HELD; n++) v[n] = v[n] + more[n];
  }
}

DI void make_sums(float4 (&v)[HELD], const float* p, size_t stride, int chunks,
                  const Page<false>& page) {
#pragma unroll
  for (int n = 0; n < HELD; n++)
    v[n] = page.make(n, [&](int i) { return tree(p + i, stride, chunks); });
}

// add_row is add_norm of a width that is a multiple of 4 for so many chunks, else for any.
template <int chunks, bool vector = chunks != 0>
DI void add_row(const AddNorm& p, float* sums) {
  const size_t size = (size_t)p.rows * p.width, row = (size_t)blockIdx.x * p.width;
  const float* parts = p.parts + row;
  float* made = p.sums + row;
  float* x = p.x + row;
  Page<vector> page(p.width);
  float4 v[HELD], w[HELD], before[HELD];
  float s[HELD] = {};
  do {
    page.fetch(p.weight);
    if (p.x) page.load(before, x);
    if constexpr (vector) make_sums<chunks>(v, parts, size, page);
    else make_sums(v, parts, size, p.chunks, page);
#pragma unroll
    for (int n = 0; n < HELD; n++) {
      if (p.sums && page.has(n)) page.store(made, n, v[n]);
      if (!p.x) continue;
      v[n] = v[n] + before[n];
      if (page.has(n)) page.store(x, n, v[n]);
    }
    page.near(w, p.weight);  // not earlier, as there are no registers for it
    add_squares(s, v, page);
  } while (page.next());
  const float f = 1.0f / sqrtf(sum_strands(s, sums) / p.width + p.eps);
  scale_row(page, v, w, p.x ? x : made, p.weight, f, p.y + row, p.half + row, p.type);
}

// add_norm is sum_chunks, once or twice, then rms_norm of what it made.
KERNEL __launch_bounds__(1024) add_norm(const __grid_constant__ AddNorm p) {
  __shared__ float sums[GROUPS];
  if (p.width % 4 != 0) add_row<0>(p, sums);
  else if (p.chunks == 1) add_row<1>(p, sums);
  else if (p.chunks == 2) add_row<2>(p, sums);
  else if (p.chunks == 4) add_row<4>(p, sums);
  else add_row<8>(p, sums);
}

template <bool vector>
DI void layer_row(const Norm& p, float (&parts)[2][GROUPS]) {
  const size_t row = (size_t)blockIdx.x * p.width;
  const float* x = p.x + row;
  Page<vector> page(p.width);
  float4 v[HELD], w[HELD], b[HELD];
  float s[HELD] = {}, squares[HELD] = {};
  page.near(w, p.weight);
  page.near(b, p.bias);
  do {
    page.load(v, x);
#pragma unroll
    for (int n = 0; n < HELD; n++) s[n] += (v[n].x + v[n].y) + (v[n].z + v[n].w);
  } while (page.next());
  const float mean = sum_strands(s, parts[0]) / p.width;
  auto centre = [&] {  // numbers become how far they are from the mean, 0 beyond the row's end
#pragma unroll
    for (int n = 0; n < HELD; n++) {
      const int left = p.width - page.place(n);
      v[n] = make_float4(left > 0 ? v[n].x - mean : 0.0f, left > 1 ? v[n].y - mean : 0.0f,
                         left > 2 ? v[n].z - mean : 0.0f, left > 3 ? v[n].w - mean : 0.0f);
    }
  };
  for (;;) {  // from the last page to the first
    centre();
    add_squares(squares, v, page);
    if (!page.previous()) break;
    page.load(v, x);
  }
  const float f = 1.0f / sqrtf(sum_strands(squares, parts[1]) / p.width + p.eps);
  for (;;) {
#pragma unroll
    for (int n = 0; n < HELD; n++) {
      if (!page.has(n)) continue;
      const float4 y = make_float4(v[n].x * f * w[n].x + b[n].x, v[n].y * f * w[n].y + b[n].y,
                                   v[n].z * f * w[n].z + b[n].z, v[n].w * f * w[n].w + b[n].w);
      page.store(p.y + row, n, y);
      page.keep(p.half + row, n, y, p.type);
    }
    if (!page.next()) return;
    page.load(v, x);
    page.near(w, p.weight);
    page.near(b, p.bias);
    centre();
  }
}

// layer_norm may write where it reads.
KERNEL __launch_bounds__(1024) layer_norm(const __grid_constant__ Norm p) {
  __shared__ float parts[2][GROUPS];
  if (p.width % 4 == 0) layer_row<true>(p, parts);
  else layer_row<false>(p, parts);
}

struct Heads {
  float* x;
  const float* weight;  // of a head; null for no norm
  const float* angles;  // [rows][turned/2 cosines, then sines]; null for none
  int rows, heads, dim, ldx, turned;
  float eps;
};

// Head is a head that a warp normalises by its root mean square, and of which it turns the first
// dimensions by halves. Squares are added in the order of pairs' first halves, their second ones,
// and the rest, of which a lane has each 32nd.
struct Head {
  const float* x;
  const float* weight;  // null for no norm
  const float* angles;  // half of them cosines, then sines; null for none
  int dim, half;        // half is that of what is turned
  float eps;

  DI Head(const float* x, const float* weight, const float* angles, int dim, int turned, float eps)
      : x(x), weight(weight), angles(angles), dim(dim), half(angles ? turned / 2 : 0), eps(eps) {}

  DI float factor(float s) const { return 1.0f / sqrtf(warp_sum(s) / dim + eps); }

  // held has all that there is loaded before any is used: pairs pairs a lane, and rest others.
  template <int pairs, int rest, class Visit>
  DI void held(Visit visit) const {
    const int lane = threadIdx.x & 31;
    float a[pairs + 1], b[pairs + 1], wa[pairs + 1], wb[pairs + 1], c[pairs + 1], s[pairs + 1];
    float r[rest + 1], wr[rest + 1], sum = 0.0f, f = 1.0f;
#pragma unroll
    for (int n = 0; n < pairs; n++) {
      const int i = lane + 32 * n;
      const bool in = i < half;
      a[n] = load_now(x + i, in);
      b[n] = load_now(x + half + i, in);
      wa[n] = load_now(weight + i, in && weight);
      wb[n] = load_now(weight + half + i, in && weight);
      c[n] = load_now(angles + i, in);
      s[n] = load_now(angles + half + i, in);
    }
#pragma unroll
    for (int n = 0; n < rest; n++) {
      const int i = 2 * half + lane + 32 * n;
      r[n] = load_now(x + i, i < dim);
      wr[n] = load_now(weight + i, i < dim && weight);
    }
    if (weight) {
#pragma unroll
      for (int n = 0; n < pairs; n++) sum = __fmaf_rn(a[n], a[n], sum);
#pragma unroll
      for (int n = 0; n < pairs; n++) sum = __fmaf_rn(b[n], b[n], sum);
#pragma unroll
      for (int n = 0; n < rest; n++) sum = __fmaf_rn(r[n], r[n], sum);
      f = factor(sum);
#pragma unroll
      for (int n = 0; n < pairs; n++) {
        a[n] = a[n] * f * wa[n];
        b[n] = b[n] * f * wb[n];
      }
#pragma unroll
      for (int n = 0; n < rest; n++) r[n] = r[n] * f * wr[n];
    }
#pragma unroll
    for (int n = 0; n < pairs; n++) {
      const int i = lane + 32 * n;
      if (i >= half) continue;
      visit(i, turned(a[n], b[n], c[n], s[n]));
      visit(half + i, turned(b[n], a[n], c[n], -s[n]));
    }
#pragma unroll
    for (int n = 0; n < rest; n++) {
      const int i = 2 * half + lane + 32 * n;
      if (i < dim) visit(i, r[n]);
    }
  }

  static DI float turned(float a, float b, float c, float s) {
    return __fmaf_rn(a, c, -__fmul_rn(b, s));
  }

  // whole is held for a head of any size.
  template <class Visit>
  DI void whole(Visit visit) const {
    const int lane = threadIdx.x & 31;
    float sum = 0.0f, f = 1.0f;
    if (weight) {
      for (int i = lane; i < half; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
      for (int i = half + lane; i < 2 * half; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
      for (int i = 2 * half + lane; i < dim; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
      f = factor(sum);
    }
    auto scaled = [&](int i) { return weight ? x[i] * f * weight[i] : x[i]; };
    for (int i = lane; i < half; i += 32) {
      const float a = scaled(i), b = scaled(half + i), c = angles[i], s = angles[half + i];
      visit(i, turned(a, b, c, s));
      visit(half + i, turned(b, a, c, -s));
    }
    for (int i = 2 * half + lane; i < dim; i += 32) visit(i, scaled(i));
  }

  // visit calls f of each number by its place, which may be written where it was read.
  template <class Visit>
  DI void visit(Visit f) const {
    if (2 * half == dim && half <= 64) held<2, 0>(f);
    else if (2 * half == dim && half <= 128) held<4, 0>(f);
    else if (half <= 64 && dim - 2 * half <= 192) held<2, 6>(f);
    else whole(f);
  }
};

KERNEL __launch_bounds__(128) heads(const __grid_constant__ Heads p) {
  int unit = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (unit >= p.rows * p.heads) return;
  int row = unit / p.heads;
  float* x = p.x + (size_t)row * p.ldx + (unit % p.heads) * p.dim;
  const float* angles = p.angles ? p.angles + (size_t)row * p.turned : nullptr;
  Head(x, p.weight, angles, p.dim, p.turned, p.eps).visit([&](int i, float v) { x[i] = v; });
}

struct StoreHeads {
  float* q;
  float* k;
  const float* v;
  const float* q_weight;  // of a head; null for no norm, as k_weight is then
  const float* k_weight;
  const float* angles;    // [rows][turned/2 cosines, then sines]; null for none
  const int* slots;       // block * block_size + offset of each row; negative for none
  const float* k_scales;  // of each head, for codes; null where each vector has its own
  const float* v_scales;
  void* cache;            // of the layer (attention.cu)
  int rows, heads, kv_heads, dim, padded, ld, turned, block_size, type, bytes;
  float eps;
};

// store_head is heads of queries and of keys, and write_cache: a warp for each head of a row.
template <bool coded>
DI void store_head(const StoreHeads& p) {
  const int all = p.heads + 2 * p.kv_heads, unit = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (unit >= p.rows * all) return;
  const int row = unit / all, n = unit % all, lane = threadIdx.x & 31;
  const float* angles = p.angles ? p.angles + (size_t)row * p.turned : nullptr;
  // Queries have no place in the cache, as rows without a slot.
  const bool query = n < p.heads;
  const int value = n >= p.heads + p.kv_heads, kv = n - p.heads - (value ? p.kv_heads : 0);
  const int slot = query ? -1 : p.slots[row];
  const int block = slot / p.block_size, offset = slot % p.block_size;
  const Place to = vector_at(p.cache, ((size_t)block * 2 + value) * p.kv_heads + kv, p.bytes, offset,
                             p.padded, p.block_size, p.type);
  auto store = [&](int i, float v) {
    if (slot < 0) return;
    if (p.type == F32) ((float*)to.vector)[i] = v;
    else if (!coded) ((u16*)to.vector)[i] = to_half(v, p.type);
    else if (i >= p.dim) to.vector[i] = 0;
  };
  for (int i = p.dim + lane; i < p.padded; i += 32) store(i, 0.0f);
  if (value) {
    const float* x = p.v + (size_t)row * p.ld + kv * p.dim;
    if (coded && slot >= 0)
      encode(to.vector, to.scale, x, p.dim, p.v_scales ? p.v_scales[kv] : 0.0f, p.type);
    else
      for (int first = lane; first < p.dim; first += 32 * 4) {
        float v[4];
#pragma unroll
        for (int n = 0; n < 4; n++) v[n] = load_now(x + first + 32 * n, first + 32 * n < p.dim);
#pragma unroll
        for (int n = 0; n < 4; n++)
          if (first + 32 * n < p.dim) store(first + 32 * n, v[n]);
      }
    return;
  }
  float* x = (query ? p.q + n * p.dim : p.k + kv * p.dim) + (size_t)row * p.ld;
  const float* weight = query ? p.q_weight : p.k_weight;
  if (query && !angles && !weight) return;
  Head(x, weight, angles, p.dim, p.turned, p.eps).visit([&](int i, float v) {
    x[i] = v;
    store(i, v);
  });
  if (!coded || slot < 0) return;
  __syncwarp();  // other lanes have stored numbers of x
  encode(to.vector, to.scale, x, p.dim, p.k_scales ? p.k_scales[kv] : 0.0f, p.type);
}

KERNEL __launch_bounds__(128) store_heads(const __grid_constant__ StoreHeads p) {
  store_head<false>(p);
}

KERNEL __launch_bounds__(128) store_heads_codes(const __grid_constant__ StoreHeads p) {
  store_head<true>(p);
}

struct Squares {
  const float* x;
  float* y;
  int rows, heads, dim, ldx, ldy;
};

// squares sums the squares of each head.
KERNEL __launch_bounds__(128) squares(const __grid_constant__ Squares p) {
  int unit = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (unit >= p.rows * p.heads) return;
  int row = unit / p.heads, head = unit % p.heads;
  const float* x = p.x + (size_t)row * p.ldx + head * p.dim;
  float s = 0;
  for (int i = lane; i < p.dim; i += 32) s += x[i] * x[i];
  s = warp_sum(s);
  if (lane == 0) p.y[(size_t)row * p.ldy + head] = s;
}

struct NormAcross {
  float* x;
  const float* weight;
  const float* squares;  // [rows][heads]
  int width, ldx, heads, ldsquares, dim;
  float eps;
};

// norm_across multiplies a row by a weight and the reciprocal of the root mean square of heads.
KERNEL __launch_bounds__(256) norm_across(const __grid_constant__ NormAcross p) {
  float* x = p.x + (size_t)blockIdx.x * p.ldx;
  const float* squares = p.squares + (size_t)blockIdx.x * p.ldsquares;
  float s = 0;
  for (int i = 0; i < p.heads; i++) s += squares[i];
  float f = 1.0f / sqrtf(s / (p.heads * p.dim) + p.eps);
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) x[i] = x[i] * f * p.weight[i];
}

struct Angles {
  const float* table;  // [positions][width]
  const int* positions;
  float* y;
  int rows, width;
};

KERNEL angles(const __grid_constant__ Angles p) {
  EACH(p.rows * p.width)
    p.y[i] = p.table[(size_t)p.positions[i / p.width] * p.width + i % p.width];
}
