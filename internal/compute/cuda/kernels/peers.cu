// Sums over ranks, each of which is a GPU that reaches the memory of the others. A rank has a window
// in its memory: it stores its part there, says so to all, and reads the parts of all where they
// are. So one launch sums, and every rank adds the same parts in the same order.
//
// A block waits for the blocks of its own number alone, and has a place of its own in the windows:
// its elements, a flag of each rank, and an epoch, which is how often it has run. No block waits for
// another one of its grid; all of them are on the device at once.
#include "fixed.cuh"
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

// own is the block's place: n elements are divided among blocks.
DI Meeting own(const Ranks& p) {
  const int units = (p.n + p.unit - 1) / p.unit;
  const int per = (units + (int)gridDim.x - 1) / (int)gridDim.x * p.unit;
  Meeting m;
  m.epoch = *((u64*)(window(p, p.rank) + EPOCHS) + blockIdx.x) + 1;
  m.first = blockIdx.x * per;
  m.n = min(per, p.n - m.first);
  m.place = ELEMENTS + ((m.epoch & 1) * PLACES + blockIdx.x) * p.slice * sizeof(float);
  return m;
}

// await returns when all ranks have stored their elements, as this one has.
//
// What a rank stores to is read by nobody any more: the elements alternate between two places, and
// were read last by the blocks of this number of the other ranks two epochs ago. Each of these ended
// before its rank's next launch began, as launches of a stream do, and only this next one published
// the epoch that this rank's block waited for before its own launch ended, one epoch ago.
DI void await(const Ranks& p, const Meeting& m) {
  u8* own = window(p, p.rank);
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
  if (threadIdx.x == 0) *((u64*)(own + EPOCHS) + blockIdx.x) = m.epoch;
}

// meet stores the part of this rank, the chunks added as a tree, and awaits those of the others.
DI Meeting meet(const Ranks& p) {
  const Meeting m = own(p);
  const float* parts = p.parts + m.first;
  float4* mine = (float4*)(window(p, p.rank) + m.place);
  for (int i = threadIdx.x; 4 * i < m.n; i += blockDim.x) {
    float4 v = load4(parts, 4 * i, m.n, p.vector);
    if (p.chunks > 1) v = v + load4(parts + p.stride, 4 * i, m.n, p.vector);
    if (p.chunks > 2)
      v = v + (load4(parts + 2 * p.stride, 4 * i, m.n, p.vector) +
               load4(parts + 3 * p.stride, 4 * i, m.n, p.vector));
    mine[i << p.cut] = v;
    if (p.cut) mine[2 * i + 1] = load4(parts + p.stride, 4 * i, m.n, p.vector);
  }
  await(p, m);
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

// PlaceRows are rows of the ranks of several places, of which each knows how many all have: the
// elements of a place are those of so many rows as it has room for.
struct PlaceRows {
  Ranks ranks;
  const int* counts;  // how many rows each rank has
  int width, from;    // the first of a place's elements that this launch exchanges
  int rows;           // how many rows of sums this rank wants
};

// filled is how many of a block's elements rows have that there are so many of.
DI int filled(const PlaceRows& p, const Meeting& m, int rows) {
  return max(0, min(m.n, rows * p.width - p.from - m.first));
}

// gather_rows collects the rows of all ranks, and zeros where a rank has none.
KERNEL __launch_bounds__(THREADS) gather_rows(const __grid_constant__ PlaceRows p) {
  const Ranks& all = p.ranks;
  const Meeting m = own(all);
  const int have = filled(p, m, p.counts[all.rank]);
  float4* mine = (float4*)(window(all, all.rank) + m.place);
  for (int i = threadIdx.x; 4 * i < have; i += blockDim.x)
    mine[i] = load4(all.parts + m.first, 4 * i, have, all.vector);
  await(all, m);
  for (int r = 0; r < all.ranks; r++) {
    const int n = filled(p, m, p.counts[r]);
    float* y = all.y + r * all.stride + m.first;
    for (int i = threadIdx.x; 4 * i < m.n; i += blockDim.x)
      store4(y, 4 * i, m.n, all.vector,
             4 * i < n ? m.of(all, r)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
  }
}

// joined adds what the ranks have of four sums: high parts, and so many elements on the low ones.
DI void joined(const Ranks& p, const Meeting& m, int i, int low, Fixed (&sums)[4]) {
  for (int from = 0; from < p.ranks; from += 4) {
    float4 h[4], l[4];  // of so many at a time, which are on their way together
#pragma unroll
    for (int r = 0; r < 4; r++)
      if (from + r < p.ranks) {
        h[r] = m.of(p, from + r)[i];
        l[r] = m.of(p, from + r)[i + low];
      }
#pragma unroll
    for (int r = 0; r < 4; r++)
      if (from + r < p.ranks) {
        sums[0].join(h[r].x, l[r].x);
        sums[1].join(h[r].y, l[r].y);
        sums[2].join(h[r].z, l[r].z);
        sums[3].join(h[r].w, l[r].w);
      }
  }
}

// scatter_sums gives each rank the sums of its rows: parts are [ranks][high, low][stride], those of
// the rows of each. y is [rows][width], with cut [high, low][rows][width].
KERNEL __launch_bounds__(THREADS) scatter_sums(const __grid_constant__ PlaceRows p) {
  const Ranks& all = p.ranks;
  const Meeting m = own(all);
  const int quads = (m.n + 3) / 4;
  float4* mine = (float4*)(window(all, all.rank) + m.place);
  for (int s = 0; s < 2 * all.ranks; s++) {
    const int n = filled(p, m, p.counts[s / 2]);
    const float* parts = all.parts + s * all.stride + m.first;
    for (int i = threadIdx.x; 4 * i < n; i += blockDim.x)
      mine[s * quads + i] = load4(parts, 4 * i, n, all.vector);
  }
  await(all, m);
  const int have = filled(p, m, p.counts[all.rank]), n = filled(p, m, p.rows);
  float* high = all.y + m.first;
  float* low = high + (size_t)p.rows * p.width;
  for (int i = threadIdx.x; 4 * i < n; i += blockDim.x) {
    Fixed sums[4] = {};
    if (4 * i < have) joined(all, m, 2 * all.rank * quads + i, quads, sums);
    float4 h = make_float4(sums[0].high, sums[1].high, sums[2].high, sums[3].high);
    const float4 l = make_float4(sums[0].low, sums[1].low, sums[2].low, sums[3].low);
    if (all.cut) store4(low, 4 * i, n, all.vector, l);
    else h = h + l;
    store4(high, 4 * i, n, all.vector, h);
  }
}
