// The gated delta rule (compute.DeltaArgs, https://arxiv.org/abs/2412.06464).
#include "recurrence.cuh"

struct Delta {
  const float* x;            // [rows][ldx]
  float* y;                  // [rows][value_heads * value_dim]
  u16* half;                 // y in 16 bits
  float* states;             // [states][state_size] of the layer
  const int* runs;           // where each sequence begins among the rows, and their end
  const int* state_of;       // of each sequence; negative for none: its rows become zeros
  const int* sequences;      // of each row
  const int* positions;      // of each row
  const int* kept;           // of each row, the state that gets a copy after it, negative for none; or 0
  const float* convolution;  // [key_heads][kernel][channels]
  const float* decay;        // of each value head
  const float* shift;        // of each value head
  const float* norm;         // [value_dim]
  u64 state_size;            // in floats
  int ldx, key_heads, value_heads, key_dim, value_dim, kernel, type;
  float eps;
};

// delta computes the rows of a sequence one after the other, a key head per block, a thread for each
// of a value's dimensions.
KERNEL __launch_bounds__(128, 8) delta(const __grid_constant__ Delta p) {
  extern __shared__ __align__(16) float mixed[];  // channels: query, key, values
  __shared__ float parts[4][4];  // of queries, keys, and value heads by turns
  const int head = blockIdx.x, tid = threadIdx.x, threads = blockDim.x;
  const int group = p.value_heads / p.key_heads, channels = 2 * p.key_dim + group * p.value_dim;
  const int keys = p.key_heads * p.key_dim, values = group * p.value_dim;
  const int first = p.runs[blockIdx.y], end = p.runs[blockIdx.y + 1];
  const int window = (p.kernel - 1) * channels, size = p.key_dim * p.value_dim;
  const int floats = window + group * size, slot = p.state_of[p.sequences[first]];
  if (slot < 0) {
    for (int r = first; r < end; r++)
      for (int v = tid; v < values; v += threads) {
        const size_t at = ((size_t)r * p.key_heads + head) * values + v;
        p.y[at] = 0.0f;
        keep_half(p.half + at, 0.0f, p.type);
      }
    return;
  }
  float* state = p.states + p.state_size * slot + (size_t)head * floats;
  float* matrices = state + window;
  if (p.positions[first] == 0)
    for (int i = tid; i < floats; i += threads) state[i] = 0.0f;
  __syncthreads();
  const float* w = p.convolution + (size_t)head * p.kernel * channels;
  for (int r = first; r < end; r++) {
    const float* x = p.x + (size_t)r * p.ldx;
    for (int c = tid; c < channels; c += threads) {
      float v = c < p.key_dim ? x[head * p.key_dim + c]
                : c < 2 * p.key_dim ? x[keys + head * p.key_dim + c - p.key_dim]
                                    : x[2 * keys + head * values + c - 2 * p.key_dim];
      float s = convolved(state, w, channels, p.kernel, c, 0.0f, v);
      mixed[c] = s * sigmoid(s);
    }
    __syncthreads();
    float q2 = 0.0f, k2 = 0.0f;
    for (int i = tid; i < p.key_dim; i += threads) {
      q2 += mixed[i] * mixed[i];
      k2 += mixed[p.key_dim + i] * mixed[p.key_dim + i];
    }
    q2 = block_sum(q2, parts[0]);
    k2 = block_sum(k2, parts[1]);
    const float fq = 1.0f / sqrtf(q2 + 1e-6f) / sqrtf((float)p.key_dim), fk = 1.0f / sqrtf(k2 + 1e-6f);
    const float* z = x + 2 * keys + p.value_heads * p.value_dim;
    const float* b = z + p.value_heads * p.value_dim;
    const float* a = b + p.value_heads;
    for (int n = 0; n < group; n++) {
      const int h = head * group + n;
      float t = a[h] + p.shift[h];
      float g = expf(p.decay[h] * (t > 20.0f ? t : log1pf(expf(t)))), beta = sigmoid(b[h]);
      float* s = matrices + (size_t)n * size;
      float* y = p.y + ((size_t)r * p.value_heads + h) * p.value_dim;
      float square = 0.0f;
      for (int v = tid; v < p.value_dim; v += threads) {
        float found = 0.0f;
        for (int j = 0; j < p.key_dim; j++)
          found += mixed[p.key_dim + j] * fk * (g * s[j * p.value_dim + v]);
        float change = beta * (mixed[2 * p.key_dim + n * p.value_dim + v] - found), o = 0.0f;
        for (int j = 0; j < p.key_dim; j++) {
          float after = g * s[j * p.value_dim + v] + mixed[p.key_dim + j] * fk * change;
          s[j * p.value_dim + v] = after;
          o += mixed[j] * fq * after;
        }
        y[v] = o;
        square += o * o;
      }
      square = block_sum(square, parts[2 + (n & 1)]);
      const float f = 1.0f / sqrtf(square / p.value_dim + p.eps);
      u16* half = p.half + ((size_t)r * p.value_heads + h) * p.value_dim;
      for (int v = tid; v < p.value_dim; v += threads) {
        float gate = z[h * p.value_dim + v];
        float o = y[v] * f * p.norm[v] * (gate * sigmoid(gate));
        y[v] = o;
        keep_half(half + v, o, p.type);
      }
    }
    if (p.kept && p.kept[r] >= 0) {  // each thread copies what it has written
      float* copy = p.states + p.state_size * p.kept[r] + (size_t)head * floats;
      for (int c = tid; c < channels; c += threads)
        for (int j = 0; j < p.kernel - 1; j++) copy[j * channels + c] = state[j * channels + c];
      for (int v = tid; v < p.value_dim; v += threads)
        for (int j = 0; j < group * p.key_dim; j++)
          copy[window + j * p.value_dim + v] = matrices[j * p.value_dim + v];
    }
  }
}
