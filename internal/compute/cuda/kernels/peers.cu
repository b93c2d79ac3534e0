// Sums over ranks, each of which is a GPU that reaches the memory of the others. A rank has a window
// in its memory: it stores its part there, says so to all, and reads the parts of all where they
// are. So one launch sums, and every rank adds the same parts in the same order.
//
// A block waits for the blocks of its own number alone, and has a place of its own in the windows:
// its elements, a flag of each rank, and an epoch, which is how often it has run. No block waits for
// another one of its grid; all of them are on the device at once.
#include "norm.cuh"

// A window is flags [PLACES][RANKS], epochs [PLACES], then elements [2][PLACES][slice].
enum { RANKS = 8, PLACES = 64, EPOCHS = 8 * RANKS * PLACES, ELEMENTS = 2 * EPOCHS, THREADS = 512 };

struct Ranks {
  const float* parts;  // this rank's, [chunks][n]; with cut [high, low][n], and both are added
  float* y;            // [n]; of gather_ranks [ranks][n], and null where nothing is gathered
  float* x;            // gets the sums added to what it has; null for none
  u8* w0;              // the windows
  u8* w1;
  u8* w2;
  u8* w3;
  u8* w4;
  u8* w5;
  u8* w6;
  u8* w7;
  const u32* over;     // not 0 once nothing waits any more; it is the host's memory
  u64 stride;          // of chunks, and of what is gathered
  int n, chunks, cut, rank, ranks, slice;
  int unit;            // blocks have whole units of so many elements, a multiple of 4
  int vector;          // parts and y are read and written 16 bytes at a time
};

DI u8* window(const Ranks& p, int r) {
  return r == 0 ? p.w0 : r == 1 ? p.w1 : r == 2 ? p.w2 : r == 3 ? p.w3 : r == 4 ? p.w4
       : r == 5 ? p.w5 : r == 6 ? p.w6 : p.w7;
}

DI void publish(u64* flag, u64 epoch) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(epoch) : "memory");
}

DI u64 published(const u64* flag) {
  u64 epoch;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(epoch) : "l"(flag) : "memory");
  return epoch;
}

DI bool is_over(const u32* over) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(over) : "memory");
  return v != 0;
}

// load4 is elements i to i+3 of n, zero beyond.
DI float4 load4(const float* p, int i, int n, int vector) {
  if (vector && i + 4 <= n) return *(const float4*)(p + i);
  return make_float4(p[i], i + 1 < n ? p[i + 1] : 0.0f, i + 2 < n ? p[i + 2] : 0.0f,
                     i + 3 < n ? p[i + 3] : 0.0f);
}

DI void store4(float* p, int i, int n, int vector, float4 v) {
  if (vector && i + 4 <= n) {
    *(float4*)(p + i) = v;
    return;
  }
  p[i] = v.x;
  if (i + 1 < n) p[i + 1] = v.y;
  if (i + 2 < n) p[i + 2] = v.z;
  if (i + 3 < n) p[i + 3] = v.w;
}

// meeting is a block's place in all windows, and its elements: n of them, the first one's number.
struct Meeting {
  size_t place;
  u64 epoch;
  int first, n;
  DI const float4* of(const Ranks& p, int r) const { return (const float4*)(window(p, r) + place); }
};

// meet stores the part of this rank, the chunks added as a tree, and returns when all ranks have.
//
// What it stores to is read by nobody any more: the elements alternate between two places, and were
// read last by the blocks of this number of the other ranks two epochs ago. Each of these ended
// before its rank's next launch began, as launches of a stream do, and only this next one published
// the epoch that this rank's block waited for before its own launch ended, one epoch ago.
DI Meeting meet(const Ranks& p) {
  const int units = (p.n + p.unit - 1) / p.unit;
  const int per = (units + (int)gridDim.x - 1) / (int)gridDim.x * p.unit;
  u8* own = window(p, p.rank);
  u64* epochs = (u64*)(own + EPOCHS) + blockIdx.x;
  Meeting m;
  m.epoch = *epochs + 1;
  m.first = blockIdx.x * per;
  m.n = min(per, p.n - m.first);
  m.place = ELEMENTS + ((m.epoch & 1) * PLACES + blockIdx.x) * p.slice * sizeof(float);
  const float* parts = p.parts + m.first;
  float4* mine = (float4*)(own + m.place);
  for (int i = threadIdx.x; 4 * i < m.n; i += blockDim.x) {
    float4 v = load4(parts, 4 * i, m.n, p.vector);
    if (p.chunks > 1) v = v + load4(parts + p.stride, 4 * i, m.n, p.vector);
    if (p.chunks > 2)
      v = v + (load4(parts + 2 * p.stride, 4 * i, m.n, p.vector) +
               load4(parts + 3 * p.stride, 4 * i, m.n, p.vector));
    mine[i << p.cut] = v;
    if (p.cut) mine[2 * i + 1] = load4(parts + p.stride, 4 * i, m.n, p.vector);
  }
  // The barrier orders what all threads stored before what one of them publishes, and what one has
  // acquired before what all load: release and acquire are cumulative (PTX ISA 8.8).
  __syncthreads();
  if (threadIdx.x < p.ranks) {
    u64* theirs = (u64*)window(p, threadIdx.x) + RANKS * blockIdx.x;
    publish(theirs + p.rank, m.epoch);
    const u64* flag = (const u64*)own + RANKS * blockIdx.x + threadIdx.x;
    for (int i = 1; published(flag) < m.epoch; i++)
      if (i % 64 == 0 && is_over(p.over)) break;
  }
  __syncthreads();
  if (threadIdx.x == 0) *epochs = m.epoch;
  return m;
}

// total is what the ranks have at a place, added as a tree.
template <int ranks>
DI float4 total(const Ranks& p, const Meeting& m, int i) {
  float4 v[ranks];
#pragma unroll
  for (int r = 0; r < ranks; r++) v[r] = m.of(p, r)[i];
#pragma unroll
  for (int step = 1; step < ranks; step *= 2)
#pragma unroll
    for (int r = 0; r < ranks; r += 2 * step) v[r] = v[r] + v[r + step];
  return v[0];
}

template <int ranks>
DI void sum(const Ranks& p, const Meeting& m) {
  for (int i = threadIdx.x; 4 * i < m.n; i += blockDim.x) {
    float4 v = total<ranks>(p, m, i << p.cut);
    if (p.cut) v = v + total<ranks>(p, m, 2 * i + 1);
    store4(p.y + m.first, 4 * i, m.n, p.vector, v);
    if (p.x) {
      float* x = p.x + m.first;
      store4(x, 4 * i, m.n, p.vector, v + load4(x, 4 * i, m.n, p.vector));
    }
  }
}

// summed adds the parts of 2, 4 or 8 ranks as a balanced tree, and the sums to x.
DI Meeting summed(const Ranks& p) {
  const Meeting m = meet(p);
  if (p.ranks == 2) sum<2>(p, m);
  else if (p.ranks == 4) sum<4>(p, m);
  else sum<8>(p, m);
  return m;
}

KERNEL __launch_bounds__(THREADS) sum_ranks(const __grid_constant__ Ranks p) { summed(p); }

struct NormRanks {
  Ranks ranks;   // its unit is a row
  const float* weight;
  float* y;      // x normalised, the sums without an x
  u16* half;     // y in 16 bits
  int type;
  float eps;
};

// norm_ranks is sum_ranks, then rms_norm of what it made.
KERNEL __launch_bounds__(1024) norm_ranks(const __grid_constant__ NormRanks p) {
  __shared__ float parts[GROUPS];
  const Meeting m = summed(p.ranks);
  const int width = p.ranks.unit;
  for (int n = 0; n < m.n; n += width) {
    __syncthreads();  // all has been stored, and parts of the row before were read
    const int at = m.first + n;
    rms_row<true>((p.ranks.x ? p.ranks.x : p.ranks.y) + at, p.weight, p.y + at, p.half + at, width,
                  p.type, p.eps, parts);
  }
}

// gather_ranks collects the parts of all ranks, one after the other. Where none are wanted it waits
// as well: meet relies on it.
KERNEL __launch_bounds__(THREADS) gather_ranks(const __grid_constant__ Ranks p) {
  const Meeting m = meet(p);
  if (!p.y) return;
  for (int r = 0; r < p.ranks; r++)
    for (int i = threadIdx.x; 4 * i < m.n; i += blockDim.x)
      store4(p.y + r * p.stride + m.first, 4 * i, m.n, p.vector, m.of(p, r)[i]);
}
