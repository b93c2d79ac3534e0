// Operations on rows, element by element. Views have a stride of their own.
#include "rt.cuh"

struct Halve {
  const float* x;
  u16* y;
  int n, type;
};

// halve stores numbers in 16 bits, which products read.
KERNEL halve(const __grid_constant__ Halve p) {
  EACH(p.n) p.y[i] = to_half(p.x[i], p.type);
}

struct CopyRows {
  const float* x;
  float* y;
  const int* rows;  // of x; null is all in order
  int count, width, ldx, ldy;
};

// copy_rows copies rows, or those that are picked.
KERNEL copy_rows(const __grid_constant__ CopyRows p) {
  EACH(p.count * p.width) {
    int r = i / p.width, c = i % p.width;
    int from = p.rows ? p.rows[r] : r;
    p.y[(size_t)r * p.ldy + c] = p.x[(size_t)from * p.ldx + c];
  }
}

struct OrderColumns {
  const u16* x;
  u16* y;             // [rows][width]
  const int* order;   // which column of x each of y's is; null is the same
  const u64* orders;  // of experts; null for none
  const int* first;   // where the rows of each expert begin in those of y, and their end
  const int* picked;  // rows of x by rows of y; null is the same
  int width, ldx, experts;
};

// order_columns puts the columns of rows in an order, of experts in their own: 512 by a block. Those
// that stay in theirs are copied 8 at a time.
KERNEL order_columns(const __grid_constant__ OrderColumns p) {
  const int row = blockIdx.x;
  const int* order = p.order;
  if (p.first && row >= p.first[p.experts]) return;
  if (p.orders) {
    int expert = 0;  // the last whose rows begin at this one or before
    for (int step = 1 << 20; step; step >>= 1)
      if (expert + step < p.experts && p.first[expert + step] <= row) expert += step;
    order = (const int*)p.orders[expert];
  }
  const u16* x = p.x + (size_t)(p.picked ? p.picked[row] : row) * p.ldx;
  const int end = min(p.width, ((int)blockIdx.y + 1) * 512);
  if (!order) {
    const int c = blockIdx.y * 512 + threadIdx.x * 8;
    if (c < end) *(uint4*)(p.y + (size_t)row * p.width + c) = *(const uint4*)(x + c);
    return;
  }
  for (int c = blockIdx.y * 512 + threadIdx.x; c < end; c += blockDim.x)
    p.y[(size_t)row * p.width + c] = x[order[c]];
}

struct AddRows {
  float* sum;
  const float* x;
  int n, period;  // x repeats after so many
};

// add_rows computes sum += x.
KERNEL add_rows(const __grid_constant__ AddRows p) {
  EACH(p.n) p.sum[i] += p.x[i % p.period];
}

struct ScaleRows {
  float* x;
  const float* factors;  // of each row; null is factor
  float factor;
  int n, width;
};

// scale_rows multiplies all numbers, or each row, by a factor.
KERNEL scale_rows(const __grid_constant__ ScaleRows p) {
  EACH(p.n) p.x[i] *= p.factors ? p.factors[i / p.width] : p.factor;
}

// What activate and gate apply.
enum { RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3, SIGMOID = 4, TANH_CAP = 5, CLAMPED = 6, RELU2 = 7 };

DI float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

DI float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

DI float activated(float x, int kind, float limit) {
  switch (kind) {
    case RELU: return fmaxf(x, 0.0f);
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case SILU: return x * sigmoid(x);
    case SIGMOID: return sigmoid(x);
    case RELU2: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
  }
  return limit * tanhf(x / limit);
}

struct Activate {
  float* x;
  int n, kind;
  float limit;
};

KERNEL activate(const __grid_constant__ Activate p) {
  EACH(p.n) p.x[i] = activated(p.x[i], p.kind, p.limit);
}

struct Gate {
  const float* both;  // [rows][gate, then up], or up alone
  float* y;
  u16* half;          // y in 16 bits
  const int* filled;  // how many rows there are; null for all
  int n, width, kind, type, alone;
  float limit;
};

DI float gated(float g, float u, const Gate& p) {
  if (p.kind != CLAMPED) return activated(g, p.kind, 0.0f) * u;
  g = fminf(g, p.limit);
  u = fminf(fmaxf(u, -p.limit), p.limit);
  return g * sigmoid(1.702f * g) * (u + 1.0f);
}

// gate computes activation(gate) * up, or activation(up); CLAMPED is GPT-OSS's (see compute.Gating). Where rows are
// vectors of 4 numbers, it takes them so.
KERNEL gate(const __grid_constant__ Gate p) {
  const int all = p.filled ? *p.filled * p.width : p.n;
  if (p.alone) {
    EACH(all) {
      const float v = activated(p.both[i], p.kind, 0.0f);
      p.y[i] = v;
      keep_half(p.half + i, v, p.type);
    }
    return;
  }
  if (p.width % 4 != 0) {
    EACH(all) {
      const float* row = p.both + (size_t)(i / p.width) * 2 * p.width;
      const float v = gated(row[i % p.width], row[p.width + i % p.width], p);
      p.y[i] = v;
      keep_half(p.half + i, v, p.type);
    }
    return;
  }
  const int width = p.width / 4;
  EACH(all / 4) {
    const float4* row = (const float4*)p.both + (size_t)(i / width) * 2 * width;
    const float4 g = row[i % width], u = row[width + i % width];
    const float4 v = make_float4(gated(g.x, u.x, p), gated(g.y, u.y, p), gated(g.z, u.z, p),
                                 gated(g.w, u.w, p));
    ((float4*)p.y)[i] = v;
    keep_halves(p.half + 4 * (size_t)i, v, p.type);
  }
}

struct SigmoidGate {
  float* x;
  const float* gate;
  int n, width, ldgate;
};

KERNEL sigmoid_gate(const __grid_constant__ SigmoidGate p) {
  EACH(p.n) p.x[i] *= sigmoid(p.gate[(size_t)(i / p.width) * p.ldgate + i % p.width]);
}

struct Lookup {
  const void* table;
  const int* ids;
  float* y;
  int rows, width, offset, type;
};

// lookup makes y the table's rows of ids.
KERNEL lookup(const __grid_constant__ Lookup p) {
  EACH(p.rows * p.width) {
    size_t row = (size_t)(p.ids[i / p.width] + p.offset);
    p.y[i] = load(p.table, row * p.width + i % p.width, p.type);
  }
}

struct SumChunks {
  const float* parts;  // [chunks][rows][width], with cut [chunks][high, low][rows][width]
  float* y;
  const float* bias;   // null for none
  int chunks, rows, width, ldy, add, cut;
};

// sum_chunks adds the chunks of a product, to what is there with add.
KERNEL sum_chunks(const __grid_constant__ SumChunks p) {
  size_t size = (size_t)p.rows * p.width;
  EACH(p.rows * p.width) {
    float v = tree(p.parts + i, size << p.cut, p.chunks);
    if (p.cut) v += tree(p.parts + size + i, size << 1, p.chunks);
    float* y = p.y + (size_t)(i / p.width) * p.ldy + i % p.width;
    if (p.bias) v += p.bias[i % p.width];
    *y = p.add ? *y + v : v;
  }
}
