// The choice of a row's token: the least key that is drawn from, and the draw.
//
// Selecting needs no sort: digit after digit of the key is found by adding up weights, or counts,
// by digit. Weights are integers there, of which the order of addition does not matter.
#include "logits.cuh"

// Scale turns logits into weights, and has what is common to all of a row.
struct Scale {
  const u64* powers;
  double steps, off;

  // weight is 2^(y/64): see weightOf of package sample.
  DI double weight(float v) const {
    double y = __dsub_rn(__dmul_rn((double)v, steps), off);
    if (!(y > -4160.0)) return 0.0;
    double z = __dadd_rn(y, 0x1.8p52);
    u64 i = (u64)__double_as_longlong(z);
    y = __dsub_rn(y, __dsub_rn(z, 0x1.8p52));
    double q = __dadd_rn(0x1.ebfbdff82c58fp-15, __dmul_rn(y, 0x1.c6b08d704a0cp-23));
    q = __dadd_rn(0x1.62e42fefa39efp-07, __dmul_rn(y, q));
    q = __dadd_rn(1.0, __dmul_rn(y, q));
    return __dmul_rn(__longlong_as_double((long long)(powers[i & 63] + (i >> 6 << 52))), q);
  }
};

// Weights as integers are multiples of 2^-43: 2^20 of the greatest can be added.
#define UNIT 0x1p43

// add adds to the sum of a digit.
DI void add(Work& s, u32 digit, u64 v) {
  if (v == 0) return;
  const u32 low = (u32)v, carry = atomicAdd(&s.bins[digit], low) > ~low;
  if (u32 high = (u32)(v >> 32) + carry) atomicAdd(&s.bins[BINS + digit], high);
}

// add_alike is add for all lanes of a warp, most of which have one digit: those that agree with the
// first one that counts add together.
DI void add_alike(Work& s, u32 digit, u64 v) {
  const u32 some = __ballot_sync(~0u, v > 0);
  if (some == 0) return;
  const int lead = __ffs(some) - 1;
  const u32 common = __shfl_sync(~0u, digit, lead);
  const bool same = v > 0 && digit == common;
  const u64 sum = warp_total(same ? v : 0);
  if ((threadIdx.x & 31) == lead) v = sum;
  else if (same) v = 0;
  add(s, digit, v);
}

// bin is the sum of a digit.
DI u64 bin(const Work& s, int digit) { return (u64)s.bins[BINS + digit] << 32 | s.bins[digit]; }

// scan finds the digit, from the greatest down, at which the sums reach goal; false is that they do
// not.
DI bool scan(Work& s, u64 goal) {
  const int each = BINS / PIECE, first = BINS - 1 - each * threadIdx.x;
  u64 sum = 0, total;
  for (int i = 0; i < each; i++) sum += bin(s, first - i);
  u64 above = block_before(sum, s.parts[1], total);
  for (int i = 0; i < each; i++) {
    const u64 own = bin(s, first - i);
    if (above < goal && goal <= above + own) {
      s.found = first - i;
      s.above = above;
      s.within = own;
    }
    above += own;
  }
  __syncthreads();
  return total >= goal;
}

// list puts the ids of a part's keys that begin as prefix does, above some bits, in r.kept, in any
// order.
DI void list(Part& part, u64 prefix, int bits, Work& s) {
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  part.visit([&](u64 key) {
    const bool in = key > 0 && (key ^ prefix) >> bits == 0;
    const u32 all = __ballot_sync(~0u, in);
    if (all == 0) return;
    int at = 0;
    if (lane == 0) at = atomicAdd(&s.listed, __popc(all));
    at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
    if (in) part.r.kept[at] = id_of(key);
  });
  __syncthreads();
  part.listed = s.listed;
}

// reach is the greatest key from which on up the part has weights of goal, 0 if it has less. Keys
// of one weight are told apart only if not all of them are needed, and if apart.
template <class W>
DI u64 reach(Part part, u64 goal, bool apart, Work& s, W weight) {
  u64 prefix = 0;
#pragma unroll 1
  for (int digit = 0; digit < 5; digit++) {
    // Values have digits of 11, 11 and 10 bits, ids of 11 and 11: they are below 2^22.
    const int shift = digit < 2 ? 53 - 11 * digit : digit == 2 ? 32 : digit == 3 ? 11 : 0;
    const int bits = digit == 2 ? 10 : 11;
    if (digit == 3) prefix |= 0xffc00000u;
    for (int i = threadIdx.x; i < 2 * BINS; i += PIECE) s.bins[i] = 0;
    __syncthreads();
    part.visit([&](u64 key) {
      const bool in = key > 0 && (key ^ prefix) >> (shift + bits - 1) >> 1 == 0;
      const u32 d = (u32)(key >> shift) & ((1u << bits) - 1);
      const u64 v = in ? weight(key) : 0;
      if (digit == 0) add_alike(s, d, v);
      else add(s, d, v);
    });
    __syncthreads();
    if (!scan(s, goal)) return 0;
    goal -= s.above;
    prefix |= s.found << shift;
    if (prefix > part.least) part.least = prefix;
    if (digit == 1) list(part, prefix, shift, s);  // few values have 22 bits in common
    if (digit == 2 && (!apart || s.within - weight(prefix) < goal)) return prefix;
  }
  return prefix;
}

// bound is a key that the k greatest of the row are not below: the k-th of the pieces' greatest.
DI u64 bound(const u64* most, int pieces, int k, Work& s) {
  if (k > pieces) return 0;
  for (int i = threadIdx.x; i < pieces; i += PIECE) s.keys[i] = most[i];
  __syncthreads();
  for (int i = threadIdx.x; i < pieces; i += PIECE) {
    int greater = 0;
    for (int j = 0; j < pieces; j++) greater += s.keys[j] > s.keys[i];
    if (greater == k - 1) s.found = s.keys[i];
  }
  __syncthreads();
  return s.found & 0xffffffff00000000ull;
}

// locate sets hit to the first of n weights with which their sum exceeds target, or to the last
// that is not 0, -1 for none, and before to the sum of those ahead of it; target is a part of all
// if of_all. It sets total, too.
template <class W>
DI void locate(W weight, int n, double target, bool of_all, Work& s) {
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x, run = (n + 31) / 32;
    double own, sum;
    double total = sum_up(weight, n, own, sum);
    if (of_all) target = __dmul_rn(target, total);
    int last = -1;
    double before = 0.0;
    bool found = false;
    for (int i = lane * run; i < min(n, (lane + 1) * run) && !found; i++) {
      double w = weight(i);
      if (w == 0.0) continue;
      last = i;
      before = sum;
      sum = __dadd_rn(sum, w);
      found = target < sum;
    }
    const u32 hits = __ballot_sync(~0u, found), some = __ballot_sync(~0u, last >= 0);
    const int lead = hits ? __ffs(hits) - 1 : some ? 31 - __clz(some) : 0;
    if (lane == lead) {
      s.hit = last;
      s.before = before;
      s.total = total;
    }
  }
  __syncthreads();
}

// collect lists the ids of a part in r.kept, ascending, and says how many they are: they are counted
// by piece, and then each has its place.
DI int collect(const Part& part, Work& s) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int piece = warp; piece < PIECES; piece += PIECE / 32) {
    int n = 0;
    if (piece < part.pieces && part.most[piece] >= part.least)
      for (int i = piece * PIECE; i < (piece + 1) * PIECE; i += 32 * 8) {
        u64 k[8];
        part.keys(k, i + lane);
#pragma unroll
        for (int j = 0; j < 8; j++) n += __popc(__ballot_sync(~0u, k[j] > 0));
      }
    if (lane == 0) s.counts[piece] = n;
  }
  __syncthreads();
  const int each = PIECES / PIECE, first = each * threadIdx.x;
  u64 sum = 0, total;
  for (int i = 0; i < each; i++) sum += s.counts[first + i];
  int before = (int)block_before(sum, s.parts[3], total);
  for (int i = 0; i < each; i++) {
    const int n = s.counts[first + i];
    s.counts[first + i] = before;
    before += n;
  }
  __syncthreads();
  for (int piece = warp; piece < part.pieces; piece += PIECE / 32) {
    if (part.most[piece] < part.least) continue;
    int at = s.counts[piece];
    for (int i = piece * PIECE; i < (piece + 1) * PIECE; i += 32 * 8) {
      u64 k[8];
      part.keys(k, i + lane);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const u32 all = __ballot_sync(~0u, k[j] > 0);
        if (k[j] > 0) part.r.kept[at + __popc(all & ((1u << lane) - 1))] = i + 32 * j + lane;
        at += __popc(all);
      }
    }
  }
  __syncthreads();
  return (int)total;
}

// draw is the id at which the weights of n logits exceed number times their sum, s.sums being those
// of their pieces.
template <class F>
DI int draw(F logit_at, int n, double number, const Scale& scale, Work& s) {
  locate([&](int i) { return (double)s.sums[i]; }, (n + PIECE - 1) / PIECE, number, true, s);
  const int first = max(s.hit, 0) * PIECE;
  const double rest = __dsub_rn(__dmul_rn(number, s.total), s.before);
  const int i = first + threadIdx.x;
  s.weights[threadIdx.x] = i < n ? scale.weight(logit_at(i)) : 0.0;
  locate([&](int i) { return s.weights[i]; }, PIECE, rest, false, s);
  return s.hit < 0 ? 0 : first + s.hit;
}

// least_from is the least key of a logit that is not below v.
DI u64 least_from(double v) {
  const u32 k = order(__double2float_rn(v));
  return (u64)((double)unordered(k) >= v ? k : k + 1) << 32;
}

// top_k is the key that what is as likely as the k-th is not below, or no greater than part.least.
DI u64 top_k(Part part, int k, Work& s) {
  const u64 least = bound(part.most, part.pieces, k, s);
  if (least > part.least) part.least = least;
  return reach(part, (u64)k, false, s, [](u64) { return 1ull; });
}

// top_p is the key that what makes the part p of all weights is not below. all says that the part
// is all of the row that is possible, s.sums being the weights of its pieces.
DI u64 top_p(Part part, double p, bool all, float greatest, const Scale& scale, Work& s) {
  auto weight = [&](u64 key) {
    return key ? __double2ull_rn(__dmul_rn(scale.weight(logit_of(key)), UNIT)) : 0;
  };
  u64 sum = 0, goal;
  double depth = 0.0, most = 0.0;
  if (all) {
    locate([&](int i) { return (double)s.sums[i]; }, part.pieces, 0.0, true, s);
    goal = __double2ull_ru(__dmul_rn(__dmul_rn(p, s.total), UNIT));
    // Few are likely, and mostly they are enough. The last ones cannot matter: n tokens that are
    // less likely than (1-p)/n each do not have the probability 1-p together.
    most = 4160.0;
    const float least = (float)((1.0 - p) * s.total / part.vocab);
    if (least > 0.0f) most = fmin(most, 1.0 - 64.0 * (double)log2f(least));
    depth = fmin(384.0, most);
  } else {
    __syncthreads();  // the powers are there
    part.visit([&](u64 key) { sum += weight(key); });
    block_before(sum, s.parts[2], goal);
    goal = __double2ull_ru(__dmul_rn(p, (double)goal));
  }
  const u64 possible = part.least;
  for (;;) {
    if (all) {
      const u64 deep = least_from(__dsub_rn((double)greatest, depth / scale.steps));
      part.least = deep > possible ? deep : possible;
    }
    const u64 key = reach(part, goal, true, s, weight);
    if (key > 0) return key;
    if (depth == most) return part.least;
    depth = most;
  }
}

// least_kept is the key that what passes min-p, top-k and top-p is not below; 0 is that all does
// that is possible. s.sums are the weights of pieces.
DI u64 least_kept(const Row& r, Part part, float greatest, const Scale& scale, Work& s) {
  const u64 possible = part.least = (u64)(IMPOSSIBLE + 1) << 32;
  const u64 low = least_from(__dadd_rn((double)greatest, __longlong_as_double(r.min_p)));
  if (low > possible) part.least = low;
  if (r.top_k > 0) {
    const u64 high = top_k(part, r.top_k, s);
    if (high > part.least) part.least = high;
  }
  const double p = __longlong_as_double(r.top_p);
  if (p < 1.0) return top_p(part, p, part.least == possible, greatest, scale, s);
  return part.least > possible ? part.least : 0;
}

DI int choice(const Row& r, const Sample& p, Work& s) {
  const u64* most = p.most + (size_t)blockIdx.x * p.pieces;
  const u64 top = greatest_of(most, p.pieces, s.parts[0]);  // a barrier, after which r is there
  const float greatest = logit_of(top);
  if (r.unsound || top == UNSOUND) return -1;
  if ((u32)(top >> 32) == IMPOSSIBLE) return r.resort;
  if (r.greedy || !finite(greatest)) return id_of(top);

  if (threadIdx.x < 64) s.powers[threadIdx.x] = p.powers[threadIdx.x];
  for (int i = threadIdx.x; i < p.pieces; i += PIECE)
    s.sums[i] = p.weights[(size_t)blockIdx.x * p.pieces + i];
  const double steps = __longlong_as_double(r.steps), number = __longlong_as_double(r.number);
  const Scale scale = {s.powers, steps, __dmul_rn((double)greatest, steps)};
  Part part = {r, most, p.vocab, p.pieces, 0, -1};
  part.least = least_kept(r, part, greatest, scale, s);
  if (part.least == 0)
    return draw([&](int i) { return logit(r, i); }, p.vocab, number, scale, s);

  const int n = collect(part, s), pieces = (n + PIECE - 1) / PIECE;
  auto kept = [&](int i) { return r.x[r.kept[i]]; };
  auto load = [&, x = r.x, ids = (const u32*)r.kept](float (&v)[16], int first) {
    u32 id[16];
#pragma unroll
    for (int k = 0; k < 16; k++) id[k] = load_now(ids + first + 16 * k, first + 16 * k < n);
#pragma unroll
    for (int k = 0; k < 16; k++) {
      const bool there = first + 16 * k < n;
      v[k] = load_now(x + id[k], there);
      if (!there) v[k] = NEG_INF;
    }
  };
  for (int first = 0; first < pieces; first += PIECE / 16) {
    const int piece = first + (threadIdx.x >> 4);
    float w = piece_weight(load, piece, greatest, r.scale);
    if (piece < pieces && (threadIdx.x & 15) == 0) s.sums[piece] = w;
  }
  return r.kept[draw(kept, n, number, scale, s)];
}

// choose chooses the token of a row.
KERNEL __launch_bounds__(PIECE, 1) choose(const __grid_constant__ Sample p) {
  __shared__ Work s;
  __shared__ Row r;
  if (threadIdx.x == 0) r = p.rows[blockIdx.x];
  int token = choice(r, p, s);
  if (threadIdx.x == 0) p.results[blockIdx.x].token = token;
}
