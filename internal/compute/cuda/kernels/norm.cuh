// Norms of a row by a block, as rms_norm, layer_norm, add_norm and norm_ranks have them.
//
// A row is vectors of 4 numbers, which are 16 aligned bytes where the width is a multiple of 4. A
// thread loads two of them, and the weights, before it uses one: of few rows the time of a norm is
// what it waits for memory. It keeps them until the sum is known. Of a row of more than one page,
// which is what all threads have, it keeps those of the last page, and loads the others again.
//
// The order of a sum depends on the width alone: vector i belongs to strand i % 2048. A strand is
// added up in order, then 32 strands that lie side by side as a butterfly, then the 64 sums of these.
// So any block will do, of whole warps, by which a page is the row, and the largest for any row.
#pragma once
#include "rt.cuh"

enum { HELD = 2, STRANDS = 2048, GROUPS = STRANDS / 32 };

DI float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Page is what a thread has of a page of a row: HELD vectors, which lie a block's threads apart.
// They are aligned if vector.
template <bool vector>
struct Page {
  int width, from;  // where the page begins

  DI explicit Page(int width) : width(width), from(0) {}
  DI int place(int n) const { return 4 * (from + n * (int)blockDim.x + (int)threadIdx.x); }
  DI bool has(int n) const { return place(n) < width; }
  DI int size() const { return HELD * blockDim.x; }
  DI bool next() {
    if (4 * (from + size()) >= width) return false;
    from += size();
    return true;
  }
  DI bool previous() {
    if (from == 0) return false;
    from -= size();
    return true;
  }
  // load is vector n, zero where there is none. It is loaded here, not where it is used first.
  DI float4 load(const float* row, int n) const {
    if (!vector) return make(n, [&](int i) { return row[i]; });
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    asm volatile("{\n.reg .pred there;\nsetp.ne.s32 there, %5, 0;\n"
                 "@there ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
                 : "l"(row + place(n)), "r"((int)has(n)) : "memory");
    return v;
  }
  DI void load(float4 (&v)[HELD], const float* row) const {
#pragma unroll
    for (int n = 0; n < HELD; n++) v[n] = load(row, n);
  }
  // near loads what nothing writes meanwhile: the row's last vector where there is none. That takes
  // fewer registers.
  DI void near(float4 (&v)[HELD], const float* row) const {
#pragma unroll
    for (int n = 0; n < HELD; n++)
      v[n] = vector ? *(const float4*)(row + min(place(n), width - 4)) : load(row, n);
  }
  // fetch has what is loaded soon brought from memory.
  DI void fetch(const float* row) const {
#pragma unroll
    for (int n = 0; n < HELD; n++)
      if (has(n)) asm volatile("prefetch.global.L2 [%0];" ::"l"(row + place(n)));
  }
  DI void store(float* row, int n, float4 v) const {
    if (vector) *(float4*)(row + place(n)) = v;
    else each(v, n, [&](int i, float e) { row[i] = e; });
  }
  // keep keeps a vector in 16 bits beside, as keep_half.
  DI void keep(u16* row, int n, float4 v, int type) const {
    if (vector) keep_halves(row + place(n), v, type);
    else each(v, n, [&](int i, float e) { keep_half(row + i, e, type); });
  }
  // make makes a vector of what numbers are, zero beyond the row's end.
  template <class Number>
  DI float4 make(int n, Number number) const {
    float e[4];
#pragma unroll
    for (int i = 0; i < 4; i++) e[i] = place(n) + i < width ? number(place(n) + i) : 0.0f;
    return make_float4(e[0], e[1], e[2], e[3]);
  }
  template <class Visit>
  DI void each(float4 v, int n, Visit visit) const {
    const float e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (place(n) + i < width) visit(place(n) + i, e[i]);
  }
};

// add_squares adds the squares of a page to what strands have.
template <bool vector>
DI void add_squares(float (&s)[HELD], const float4 (&v)[HELD], const Page<vector>& page) {
#pragma unroll
  for (int n = 0; n < HELD; n++)
    if (page.has(n))
      s[n] += __fmaf_rn(v[n].x, v[n].x, v[n].y * v[n].y) + __fmaf_rn(v[n].z, v[n].z, v[n].w * v[n].w);
}

// sum_strands adds up what strands have; parts has GROUPS places. It has one barrier, as block_sum.
DI float sum_strands(const float (&s)[HELD], float* parts) {
  const int warps = blockDim.x >> 5, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int n = 0; n < HELD; n++) {
    const float v = warp_sum(s[n]);
    if (lane == 0) parts[warp + n * warps] = v;
  }
  __syncthreads();
  const float a = lane < HELD * warps ? parts[lane] : 0.0f;
  const float b = lane + 32 < HELD * warps ? parts[lane + 32] : 0.0f;
  return warp_sum(a + b);
}

// scale_row makes y a row multiplied by a factor and by a weight, of which v and w are of the page
// that was loaded last.
template <bool vector>
DI void scale_row(Page<vector> page, float4 (&v)[HELD], float4 (&w)[HELD], const float* x,
                  const float* weight, float f, float* y, u16* half, int type) {
  for (;;) {
#pragma unroll
    for (int n = 0; n < HELD; n++) {
      if (!page.has(n)) continue;
      const float4 r = make_float4(v[n].x * f * w[n].x, v[n].y * f * w[n].y, v[n].z * f * w[n].z,
                                   v[n].w * f * w[n].w);
      page.store(y, n, r);
      page.keep(half, n, r, type);
    }
    if (!page.previous()) return;
    page.load(v, x);
    page.near(w, weight);
  }
}

// rms_row makes y a row divided by its root mean square and multiplied by a weight.
template <bool vector>
DI void rms_row(const float* x, const float* weight, float* y, u16* half, int width, int type,
                float eps, float* parts) {
  Page<vector> page(width);
  float4 v[HELD], w[HELD];
  float s[HELD] = {};
  do {
    page.load(v, x);
    page.near(w, weight);
    add_squares(s, v, page);
  } while (page.next());
  const float f = 1.0f / sqrtf(sum_strands(s, parts) / width + eps);
  scale_row(page, v, w, x, weight, f, y, half, type);
}
