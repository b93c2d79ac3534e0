// The selective scan of Mamba-2 (compute.ScanArgs, https://arxiv.org/abs/2405.21060).
#include "recurrence.cuh"

struct Scan {
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
  const float* bias;         // [key_heads][channels]; or 0
  const float* decay;        // of each value head
  const float* shift;        // of each value head
  const float* skip;         // of each value head
  u64 state_size;            // in floats
  int ldx, key_heads, value_heads, key_dim, value_dim, kernel, groups, type;
  float step_scale, gate_scale, least, most;
};

// scan computes the rows of a sequence one after the other, a key head per block, its value heads'
// dimensions by turns of the threads.
KERNEL __launch_bounds__(128, 8) scan(const __grid_constant__ Scan p) {
  extern __shared__ __align__(16) float mixed[];  // channels: C, B, x; then steps and decays of heads
  const int head = blockIdx.x, tid = threadIdx.x, threads = blockDim.x;
  const int group = p.value_heads / p.key_heads, values = group * p.value_dim;
  const int channels = 2 * p.key_dim + values, width = p.value_heads * p.value_dim;
  const int first = p.runs[blockIdx.y], end = p.runs[blockIdx.y + 1];
  const int window = (p.kernel - 1) * channels, size = p.key_dim * p.value_dim;
  const int floats = window + group * size, slot = p.state_of[p.sequences[first]];
  if (slot < 0) {
    for (int r = first; r < end; r++)
      for (int v = tid; v < values; v += threads) {
        const size_t at = (size_t)r * width + head * values + v;
        p.y[at] = 0.0f;
        keep_half(p.half + at, 0.0f, p.type);
      }
    return;
  }
  float* steps = mixed + channels;
  float* decays = steps + group;
  float* state = p.states + p.state_size * slot + (size_t)head * floats;
  float* matrices = state + window;
  if (p.positions[first] == 0)
    for (int i = tid; i < floats; i += threads) state[i] = 0.0f;
  __syncthreads();
  const float* w = p.convolution + (size_t)head * p.kernel * channels;
  const int of = head * p.groups / p.key_heads * p.key_dim, all = p.groups * p.key_dim;
  for (int r = first; r < end; r++) {
    const float* z = p.x + (size_t)r * p.ldx;
    const float* x = z + width + head * values;
    const float* b = z + 2 * width + of;
    const float* dt = z + 2 * width + 2 * all;
    for (int c = tid; c < channels; c += threads) {
      float v = c < p.key_dim       ? b[all + c]
                : c < 2 * p.key_dim ? b[c - p.key_dim]
                                    : x[c - 2 * p.key_dim];
      float s = convolved(state, w, channels, p.kernel, c, p.bias ? p.bias[head * channels + c] : 0.0f, v);
      mixed[c] = s * sigmoid(s);
    }
    for (int n = tid; n < group; n += threads) {
      const int h = head * group + n;
      float t = p.step_scale * dt[h] + p.shift[h];
      t = fminf(fmaxf(t > 20.0f ? t : log1pf(expf(t)), p.least), p.most);
      steps[n] = t;
      decays[n] = expf(p.decay[h] * t);
    }
    __syncthreads();
    for (int v = tid; v < values; v += threads) {
      const int n = v / p.value_dim;
      float* s = matrices + (size_t)n * size + v % p.value_dim;
      const float value = mixed[2 * p.key_dim + v], change = steps[n] * value, g = decays[n];
      float o = p.skip[head * group + n] * value;
      for (int j = 0; j < p.key_dim; j++) {
        float after = g * s[j * p.value_dim] + mixed[p.key_dim + j] * change;
        s[j * p.value_dim] = after;
        o += mixed[j] * after;
      }
      const float gate = p.gate_scale * z[head * values + v];
      const size_t at = (size_t)r * width + head * values + v;
      o *= gate * sigmoid(gate);
      p.y[at] = o;
      keep_half(p.half + at, o, p.type);
    }
    if (p.kept && p.kept[r] >= 0) {  // each thread copies what it has written
      float* copy = p.states + p.state_size * p.kept[r] + (size_t)head * floats;
      for (int c = tid; c < channels; c += threads)
        for (int j = 0; j < p.kernel - 1; j++) copy[j * channels + c] = state[j * channels + c];
      for (int v = tid; v < values; v += threads) {
        const int at = window + v / p.value_dim * size + v % p.value_dim;
        for (int j = 0; j < p.key_dim; j++)
          copy[at + j * p.value_dim] = state[at + j * p.value_dim];
      }
    }
    __syncthreads();
  }
}
