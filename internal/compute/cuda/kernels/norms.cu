// Norms of rows and of heads. A block has a row, a warp a head: the order of each sum depends on the
// width alone.
#include "rt.cuh"

struct Norm {
  const float* x;
  const float* weight;
  const float* bias;  // null for none
  float* y;
  u16* half;          // y in 16 bits
  int width, type;
  float eps;
};

KERNEL __launch_bounds__(256) rms_norm(const __grid_constant__ Norm p) {
  __shared__ float parts[8];
  const float* x = p.x + (size_t)blockIdx.x * p.width;
  float* y = p.y + (size_t)blockIdx.x * p.width;
  u16* half = p.half + (size_t)blockIdx.x * p.width;
  float s = 0;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) s += x[i] * x[i];
  s = block_sum(s, parts);
  float f = 1.0f / sqrtf(s / p.width + p.eps);
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
    float v = x[i] * f * p.weight[i];
    y[i] = v;
    keep_half(half + i, v, p.type);
  }
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

// add_norm is sum_chunks, once or twice, then rms_norm of what it made.
KERNEL __launch_bounds__(256) add_norm(const __grid_constant__ AddNorm p) {
  __shared__ float sums[8];
  const size_t size = (size_t)p.rows * p.width, row = blockIdx.x;
  const float* parts = p.parts + row * p.width;
  float* made = p.sums + row * p.width;
  float* x = p.x + row * p.width;
  float* y = p.y + row * p.width;
  u16* half = p.half + row * p.width;
  float s = 0;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
    float v = tree(parts + i, size, p.chunks);
    if (p.sums) made[i] = v;
    if (p.x) {
      v += x[i];
      x[i] = v;
    }
    s += v * v;
  }
  s = block_sum(s, sums);
  float f = 1.0f / sqrtf(s / p.width + p.eps);
  if (!p.x) x = made;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
    float v = x[i] * f * p.weight[i];
    y[i] = v;
    keep_half(half + i, v, p.type);
  }
}

// layer_norm may write where it reads.
KERNEL __launch_bounds__(256) layer_norm(const __grid_constant__ Norm p) {
  __shared__ float parts[2][8];
  const float* x = p.x + (size_t)blockIdx.x * p.width;
  float* y = p.y + (size_t)blockIdx.x * p.width;
  u16* half = p.half + (size_t)blockIdx.x * p.width;
  float s = 0;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) s += x[i];
  float mean = block_sum(s, parts[0]) / p.width;
  s = 0;
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) s += (x[i] - mean) * (x[i] - mean);
  float f = 1.0f / sqrtf(block_sum(s, parts[1]) / p.width + p.eps);
  for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
    float v = (x[i] - mean) * f * p.weight[i] + p.bias[i];
    y[i] = v;
    keep_half(half + i, v, p.type);
  }
}

struct Heads {
  float* x;
  const float* weight;  // of a head; null for no norm
  const float* angles;  // [rows][turned/2 cosines, then sines]; null for none
  int rows, heads, dim, ldx, turned;
  float eps;
};

// head normalises a head by its root mean square and turns its first dimensions by halves, by one
// warp, which is told of each number by its place: it may be written where it was read.
template <typename Visit>
DI void head(const float* x, const float* weight, const float* angles, int dim, int turned, float eps,
             Visit visit) {
  const int lane = threadIdx.x & 31, half = angles ? turned / 2 : 0;
  float f = 1.0f;
  if (weight) {
    float s = 0;
    for (int i = lane; i < dim; i += 32) s += x[i] * x[i];
    f = 1.0f / sqrtf(warp_sum(s) / dim + eps);
  }
  for (int i = lane; i < half; i += 32) {
    float a = x[i], b = x[i + half], c = angles[i], s = angles[half + i];
    if (weight) {
      a = a * f * weight[i];
      b = b * f * weight[i + half];
    }
    visit(i, a * c - b * s);
    visit(i + half, b * c + a * s);
  }
  for (int i = 2 * half + lane; i < dim; i += 32) visit(i, weight ? x[i] * f * weight[i] : x[i]);
}

KERNEL __launch_bounds__(128) heads(const __grid_constant__ Heads p) {
  int unit = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (unit >= p.rows * p.heads) return;
  int row = unit / p.heads;
  float* x = p.x + (size_t)row * p.ldx + (unit % p.heads) * p.dim;
  const float* angles = p.angles ? p.angles + (size_t)row * p.turned : nullptr;
  head(x, p.weight, angles, p.dim, p.turned, p.eps, [&](int i, float v) { x[i] = v; });
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
  if (n < p.heads) {
    float* x = p.q + (size_t)row * p.ld + n * p.dim;
    if (angles || p.q_weight)
      head(x, p.q_weight, angles, p.dim, p.turned, p.eps, [&](int i, float v) { x[i] = v; });
    return;
  }
  const int value = n >= p.heads + p.kv_heads, kv = n - p.heads - (value ? p.kv_heads : 0);
  const int slot = p.slots[row], block = slot / p.block_size, offset = slot % p.block_size;
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
    else for (int i = lane; i < p.dim; i += 32) store(i, x[i]);
    return;
  }
  float* x = p.k + (size_t)row * p.ld + kv * p.dim;
  head(x, p.k_weight, angles, p.dim, p.turned, p.eps, [&](int i, float v) {
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
