// The gated short convolution (compute.ConvolutionArgs, https://arxiv.org/abs/2511.23404).
#include "rt.cuh"

struct Convolution {
  const float* x;        // [rows][ldx]: b of all channels, c, x
  float* y;              // [rows][channels]
  u16* half;             // y in 16 bits
  float* states;         // [states][state_size] of the layer
  const int* runs;       // where each sequence begins among the rows, and their end
  const int* state_of;   // of each sequence; negative for none, and nothing is kept
  const int* sequences;  // of each row
  const int* positions;  // of each row
  const int* kept;       // of each row, the state that gets a copy after it, negative for none; or 0
  const float* weights;  // [parts][kernel][part]
  const float* bias;     // of each channel; or 0
  u64 state_size;        // in floats
  int ldx, channels, part, kernel, type;
};

// convolve computes channels of a part of a sequence's rows, 32 per block: each warp has rows of its
// own, which read the inputs of those before them as they are in x. The state is that before the rows
// until all warps have read it.
KERNEL __launch_bounds__(1024) convolve(const __grid_constant__ Convolution p) {
  const int at = blockIdx.x * 32 + threadIdx.x, part = blockIdx.z, last = p.kernel - 1;
  const int first = p.runs[blockIdx.y], end = p.runs[blockIdx.y + 1];
  const int slot = p.state_of[p.sequences[first]];
  const bool there = at < p.part, fresh = slot < 0 || p.positions[first] == 0;
  const float* x = p.x + part * p.part + at;
  const float* w = p.weights + (size_t)part * p.kernel * p.part + at;
  float* states = p.states + (size_t)part * last * p.part + at;
  // input is that of a row, or of one before the first.
  auto input = [&](int r) {
    if (r < first) return fresh ? 0.0f : states[p.state_size * slot + (r - first + last) * p.part];
    const float* row = x + (size_t)r * p.ldx;
    return row[0] * row[2 * p.channels];
  };
  // keep makes a state that after a row: of its own state each place becomes a later one of it, or a row.
  auto keep = [&](int r, int to) {
#pragma unroll 1
    for (int j = 0; j < last; j++) states[p.state_size * to + j * p.part] = input(r - last + 1 + j);
  };
  for (int r = first + threadIdx.y; there && r < end; r += blockDim.y) {
    float s = p.bias ? p.bias[part * p.part + at] : 0.0f;
#pragma unroll 1
    for (int j = 0; j <= last; j++) s += w[j * p.part] * input(r - last + j);
    s *= x[(size_t)r * p.ldx + p.channels];
    const size_t to = (size_t)r * p.channels + part * p.part + at;
    p.y[to] = s;
    keep_half(p.half + to, s, p.type);
    if (p.kept && p.kept[r] >= 0) keep(r, p.kept[r]);
  }
  __syncthreads();
  if (there && slot >= 0 && threadIdx.y == 0) keep(end - 1, slot);
}
