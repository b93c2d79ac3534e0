// Mixtures of experts: the choice of a row's experts, rows by expert for the grouped products of
// gemm.cu, and the sums of what the experts made of a row, which do not depend on who adds what.
#include "fixed.cuh"

// Shares are the rows of several places, which have room for as many each, and of which the first
// ones are there. A null counts is one place, all rows of which are.
struct Shares {
  const int* counts;
  int room;
};

DI bool present(const Shares& s, int row) {
  return !s.counts || row % s.room < s.counts[row / s.room];
}

struct Route {
  float* scores;            // [rows][experts]; changed
  const float* correction;  // of each expert; null for none
  int* chosen;              // [rows][per_token], ascending
  float* weights;           // parallel to chosen
  Shares shares;            // whose rows they are
  u64* load;                // rows of each expert, which are added to; null for none
  const int* counted;       // of each row of this rank's place: whether it counts, from least on
  int own;                  // the first of these
  int least;
  int rows, experts, per_token, sigmoid, normalise, groups, top_groups, best;
  float factor;
  const float* factors;  // of each expert, null for none
};

// best_of is the lane's and all lanes' greatest value, of equals that of the lowest index.
DI void best_of(float& v, int& i) {
#pragma unroll
  for (int n = 16; n > 0; n >>= 1) {
    float w = __shfl_xor_sync(~0u, v, n);
    int j = __shfl_xor_sync(~0u, i, n);
    if (w > v || (w == v && j < i)) {
      v = w;
      i = j;
    }
  }
}

// close_groups leaves no choice in the groups that may not be chosen from: all but top_groups, by
// the sum of their one or two best. open has a place for each group.
DI void close_groups(float* choice, float* open, const Route& p) {
  const int lane = threadIdx.x & 31, size = p.experts / p.groups;
  for (int g = 0; g < p.groups; g++) {
    float first = NEG_INF, sum;
    int at = 0x7fffffff, skip = -1;
    for (int n = 0; n < p.best; n++) {
      float v = NEG_INF;
      int i = 0x7fffffff;
      for (int e = g * size + lane; e < (g + 1) * size; e += 32)
        if (e != skip && choice[e] > v) {
          v = choice[e];
          i = e;
        }
      best_of(v, i);
      if (n == 0) first = sum = v, at = i;
      else sum = first + v;
      skip = at;
    }
    if (lane == 0) open[g] = sum;
  }
  __syncwarp();
  for (int n = 0; n < p.groups - p.top_groups; n++) {
    // The least of those left is closed; of equals the last.
    float v = NEG_INF;
    int i = 0x7fffffff;
    for (int g = p.groups - 1 - lane; g >= 0; g -= 32)
      if (open[g] != NEG_INF && -open[g] > v) {
        v = -open[g];
        i = p.groups - 1 - g;
      }
    best_of(v, i);
    int g = max(p.groups - 1 - i, 0);  // none is the least of what are no numbers
    __syncwarp();
    if (lane == 0) open[g] = NEG_INF;
    for (int e = g * size + lane; e < (g + 1) * size; e += 32) choice[e] = NEG_INF;
    __syncwarp();
  }
}

// route_row chooses the experts of a row, by one warp: of one that is not there any, which have no
// weight. choice has a place for each expert, and for each group.
DI void route_row(const Route& p, int row, float* choice) {
  const int lane = threadIdx.x & 31;
  if (!present(p.shares, row)) {
    if (lane >= p.per_token) return;
    p.chosen[(size_t)row * p.per_token + lane] = 0;
    p.weights[(size_t)row * p.per_token + lane] = 0.0f;
    return;
  }
  float* scores = p.scores + (size_t)row * p.experts;
  float most = NEG_INF, sum = 0.0f;
  if (!p.sigmoid) {
    for (int e = lane; e < p.experts; e += 32) most = fmaxf(most, scores[e]);
    most = warp_max(most);
    for (int e = lane; e < p.experts; e += 32) {
      scores[e] = expf(scores[e] - most);
      sum += scores[e];
    }
    sum = warp_sum(sum);
  }
  for (int e = lane; e < p.experts; e += 32) {
    float s = p.sigmoid ? sigmoid(scores[e]) : scores[e] / sum;
    scores[e] = s;
    choice[e] = p.correction ? s + p.correction[e] : s;
  }
  __syncwarp();
  if (p.groups > 1) close_groups(choice, choice + p.experts, p);
  // Lane n has the n-th of the chosen.
  int mine = 0x7fffffff;
  float weight = 0.0f, total = 0.0f;
  for (int n = 0; n < p.per_token; n++) {
    float v = NEG_INF;
    int i = 0x7fffffff;
    for (int e = lane; e < p.experts; e += 32)
      if (choice[e] > v) {
        v = choice[e];
        i = e;
      }
    best_of(v, i);
    i = min(i, p.experts - 1);  // where scores are no numbers, none is the best
    float s = scores[i];
    total += s;
    if (lane == n) {
      mine = i;
      weight = s;
    }
    __syncwarp();
    if (lane == 0) choice[i] = NEG_INF;
    __syncwarp();
  }
  if (p.normalise) weight /= total;
  if (p.factor != 0.0f) weight *= p.factor;
  if (p.factors && lane < p.per_token) weight *= p.factors[mine];
  int place = 0;
  for (int n = 0; n < p.per_token; n++) place += __shfl_sync(~0u, mine, n) < mine;
  if (lane >= p.per_token) return;
  p.chosen[(size_t)row * p.per_token + place] = mine;
  p.weights[(size_t)row * p.per_token + place] = weight;
  const u32 counted = row - p.own;
  if (p.load && counted < (u32)p.shares.room && p.counted[counted] >= p.least)
    atomicAdd(&p.load[mine], 1ull);
}

KERNEL __launch_bounds__(32) route(const __grid_constant__ Route p) {
  extern __shared__ __align__(16) float choice[];  // experts, then groups
  route_row(p, blockIdx.x, choice);
}

struct Order {
  const int* chosen;  // [pairs]
  int* first;         // [experts + 1]: where the rows of an expert begin
  int* rows_of;       // [pairs]: the row of x of each row by expert
  int* place_of;      // [pairs]: where a row's expert has it, negative where another rank computes it
  // Of ranks that hold whole experts, where the shares of each expert's copies begin in this list,
  // and these; null where this one has all. The step's turn has copies take turns.
  const int* held;
  const int* turn;
  Shares shares;  // whose rows they are
  int pairs, per_token, experts, share;
};

// here says whether this rank computes a pair (compute.HeldExperts).
DI bool here(const Order& p, int pair) {
  if (!p.held) return true;
  const int e = p.chosen[pair], row = pair / p.per_token;
  if (!present(p.shares, row)) return false;
  const u32 from = p.held[e], copies = p.held[e + 1] - from;
  return p.held[from + ((u32)row + (u32)*p.turn + (u32)e) % copies] == p.share;
}

// order_rows sorts rows by expert, in one block; count has a place for each expert, and one more. In
// which order an expert has its rows changes no sum.
DI void order_rows(const Order& p, int* count) {
  for (int e = threadIdx.x; e <= p.experts; e += blockDim.x) count[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < p.pairs; i += blockDim.x) {
    p.place_of[i] = here(p, i) ? 0 : -1;
    if (p.place_of[i] == 0) atomicAdd(&count[p.chosen[i]], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int at = 0;
    for (int e = 0; e <= p.experts; e++) {
      int n = count[e];
      count[e] = at;
      p.first[e] = at;
      at += n;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.pairs; i += blockDim.x) {
    if (p.place_of[i] < 0) continue;
    int at = atomicAdd(&count[p.chosen[i]], 1);
    p.rows_of[at] = i / p.per_token;
    p.place_of[i] = at;
  }
}

KERNEL __launch_bounds__(1024) order(const __grid_constant__ Order p) {
  extern __shared__ __align__(16) int count[];  // experts + 1
  order_rows(p, count);
}

struct RouteOrder {
  Route route;
  Order order;
};

// route_order is route and order of few rows, in one block.
KERNEL __launch_bounds__(1024) route_order(const __grid_constant__ RouteOrder p) {
  extern __shared__ __align__(16) float places[];  // of each warp, experts and groups
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  for (int row = warp; row < p.route.rows; row += warps)
    route_row(p.route, row, places + warp * (p.route.experts + max(p.route.groups, 1)));
  __syncthreads();
  order_rows(p.order, (int*)places);
}

struct Combine {
  const float* parts;   // [chunks][pairs][width]
  const int* place_of;  // [rows][per_token]; negative for none
  const float* weights;
  float* y;             // [rows][width], with cut [places][high, low][room][width]
  int rows, per_token, width, chunks, cut;
  int room;             // how many of the rows are of each place
};

// combine adds what a row's experts made of it, weighted, in fixed point: so ranks that hold whole
// experts, or a share of each, add to the same bits.
KERNEL combine(const __grid_constant__ Combine p) {
  const size_t chunk = (size_t)p.rows * p.per_token * p.width;
  EACH(p.rows * p.width) {
    int row = i / p.width, d = i % p.width;
    const int* places = p.place_of + (size_t)row * p.per_token;
    const float* weights = p.weights + (size_t)row * p.per_token;
    Fixed sum = {0.0f, 0.0f};
    for (int n = 0; n < p.per_token; n++) {
      if (places[n] < 0) continue;
      const float* part = p.parts + (size_t)places[n] * p.width + d;
      float v[8];
#pragma unroll
      for (int c = 0; c < 8; c++) v[c] = c < p.chunks ? part[c * chunk] : 0.0f;
#pragma unroll
      for (int c = 0; c < 8; c++) sum.add(weights[n], v[c]);
    }
    if (!p.cut) {
      p.y[i] = sum.whole();
      continue;
    }
    const size_t size = (size_t)p.room * p.width;
    float* y = p.y + row / p.room * size + i;  // as many low ones stand before it as high ones
    y[0] = sum.high;
    y[size] = sum.low;
  }
}

struct AddShares {
  const float* parts;  // [ranks][high, low][room][width]
  float* y;            // [rows][width], with cut [high, low][rows][width]
  int ranks, room, rows, width, cut;
};

// add_shares adds what the experts of all ranks made of the rows of this one's place.
KERNEL add_shares(const __grid_constant__ AddShares p) {
  const size_t size = (size_t)p.room * p.width;
  EACH(p.rows * p.width) {
    Fixed sum = {0.0f, 0.0f};
    for (int r = 0; r < p.ranks; r++) {
      const float* part = p.parts + 2 * r * size + i;
      sum.join(part[0], part[size]);
    }
    if (p.cut) p.y[(size_t)p.rows * p.width + i] = sum.low;
    p.y[i] = p.cut ? sum.high : sum.whole();
  }
}

struct ExpertBiases {
  float* sum;
  const int* chosen;
  const float* weights;
  const u64* biases;  // of each expert
  int rows, per_token, width;
};

KERNEL expert_biases(const __grid_constant__ ExpertBiases p) {
  EACH(p.rows * p.width) {
    int row = i / p.width, d = i % p.width;
    float v = p.sum[i];
    for (int n = 0; n < p.per_token; n++) {
      int pair = row * p.per_token + n;
      v += p.weights[pair] * ((const float*)p.biases[p.chosen[pair]])[d];
    }
    p.sum[i] = v;
  }
}
