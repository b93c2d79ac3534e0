// Attention of one new token of each sequence over a paged cache, keys and values in bf16: this
// project's first prototype of the kernel, a test and a benchmark of the interpreter. The cache is
// cut into splits of a fixed number of tokens; a block has one split of one key/value head of one
// sequence, with up to 16 query heads, and four warps that own 16 of 64 tokens of a tile each.
//   nvrtc 12.1 --gpu-architecture=compute_80 --std=c++17 -default-device
typedef unsigned long size_t;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
#define DI __device__ __forceinline__
#define D 128  // of a head
#define BN 64  // tokens of a tile
#define ST 3   // stages

DI u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DI void copy16(u32 d, const void *s, bool p) {
  int n = p ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(d), "l"(s), "r"(n) : "memory");
}
DI void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DI void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DI void load4(u32 (&r)[4], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
DI void load4t(u32 (&r)[4], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
DI void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DI u32 pack(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DI float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}
// Rows of 256 bytes, whose 16-byte pieces are exchanged.
DI u32 place(u32 row, u32 piece) { return row * 256u + ((piece ^ (row & 7u)) << 4); }

// q is [B, Hq, 128], kv [page][2][Hkv][P][128]; out and sums are partial results of each split.
struct Params {
  const u16 *q, *kv;
  const int *pages, *lengths;
  float *out, *sums;
  int stride, Hq, Hkv, page, split, splits;
  float scale;
};

extern "C" __global__ void __launch_bounds__(128) attention(const Params p) {
  extern __shared__ __align__(128) u8 sm[];
  const int tid = threadIdx.x, w = tid >> 5, l = tid & 31, g = l >> 2, t = l & 3;
  const int sp = blockIdx.x, h = blockIdx.y, b = blockIdx.z, G = p.Hq / p.Hkv;
  const int len = p.lengths[b], t0 = sp * p.split;
  if (t0 >= len) return;
  const int t1 = len < t0 + p.split ? len : t0 + p.split;
  const u32 sQ = shared_address(sm), sK = sQ + 16 * 256, sV = sK + ST * BN * 256;
  for (int i = tid; i < 16 * 16; i += 128) {
    int r = i >> 4, c = i & 15;
    copy16(sQ + place(r, c), p.q + ((size_t)b * p.Hq + h * G + (r < G ? r : 0)) * D + c * 8, r < G);
  }
  const int nt = (t1 - t0 + BN - 1) / BN;
  auto load = [&](int it) {
    int s = it % ST;
    if (it < nt)
      for (int i = tid; i < BN * 16; i += 128) {
        int r = i >> 4, c = i & 15, tok = t0 + it * BN + r;
        bool ok = tok < t1;
        int tk = ok ? tok : t0;
        size_t base = ((size_t)p.pages[b * p.stride + tk / p.page] * 2 * p.Hkv + h) * p.page +
                      tk % p.page;
        const u16 *kp = p.kv + base * D + c * 8, *vp = kp + (size_t)p.Hkv * p.page * D;
        copy16(sK + s * BN * 256 + place(r, c), kp, ok);
        copy16(sV + s * BN * 256 + place(r, c), vp, ok);
      }
    commit();
  };
  for (int i = 0; i < ST - 1; i++) load(i);
  float o[16][4];
#pragma unroll
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 4; j++) o[i][j] = 0.f;
  float m0 = -1e30f, m1 = -1e30f, l0 = 0.f, l1 = 0.f;
  u32 qf[8][4];
  for (int it = 0; it < nt; it++) {
    wait<ST - 2>();
    __syncthreads();
    load(it + ST - 1);
    if (it == 0) {
#pragma unroll
      for (int k = 0; k < 8; k++) load4(qf[k], sQ + place((l & 15), (u32)(k * 2 + (l >> 4))));
    }
    int s = it % ST;
    u32 kb = sK + s * BN * 256, vb = sV + s * BN * 256;
    float c[2][4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++) {
      u32 kf[4];
      load4(kf, kb + place((u32)(w * 16 + (l & 7) + ((l >> 4) << 3)),
                           (u32)(k * 2 + ((l >> 3) & 1))));
      mma(c[0], qf[k], kf[0], kf[1]);
      mma(c[1], qf[k], kf[2], kf[3]);
    }
    float x0 = -1e30f, x1 = -1e30f;
    int tb = t0 + it * BN + w * 16 + t * 2;
#pragma unroll
    for (int j = 0; j < 2; j++)
      for (int e = 0; e < 2; e++) {
        bool ok = tb + j * 8 + e < t1;
        c[j][e] = ok ? c[j][e] * p.scale : -1e30f;
        c[j][e + 2] = ok ? c[j][e + 2] * p.scale : -1e30f;
        x0 = fmaxf(x0, c[j][e]);
        x1 = fmaxf(x1, c[j][e + 2]);
      }
    x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, 1));
    x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, 2));
    x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, 1));
    x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, 2));
    float n0 = fmaxf(m0, x0), n1 = fmaxf(m1, x1), a0 = ex2(m0 - n0), a1 = ex2(m1 - n1);
    m0 = n0;
    m1 = n1;
    float s0 = 0, s1 = 0;
#pragma unroll
    for (int j = 0; j < 2; j++)
      for (int e = 0; e < 2; e++) {
        bool ok = tb + j * 8 + e < t1;
        c[j][e] = ok ? ex2(c[j][e] - n0) : 0.f;
        c[j][e + 2] = ok ? ex2(c[j][e + 2] - n1) : 0.f;
        s0 += c[j][e];
        s1 += c[j][e + 2];
      }
    l0 = l0 * a0 + s0;
    l1 = l1 * a1 + s1;
    u32 pf[4] = {pack(c[0][0], c[0][1]), pack(c[0][2], c[0][3]), pack(c[1][0], c[1][1]),
                 pack(c[1][2], c[1][3])};
#pragma unroll
    for (int n = 0; n < 8; n++) {
      u32 vf[4];
      load4t(vf, vb + place((u32)(w * 16 + (l & 15)), (u32)(n * 2 + (l >> 4))));
      for (int j = 0; j < 2; j++) {
        float(&oo)[4] = o[n * 2 + j];
        oo[0] *= a0;
        oo[1] *= a0;
        oo[2] *= a1;
        oo[3] *= a1;
        mma(oo, pf, vf[j * 2], vf[j * 2 + 1]);
      }
    }
  }
  l0 += __shfl_xor_sync(~0u, l0, 1);
  l0 += __shfl_xor_sync(~0u, l0, 2);
  l1 += __shfl_xor_sync(~0u, l1, 1);
  l1 += __shfl_xor_sync(~0u, l1, 2);
  // The four warps' results are combined in a fixed order, through shared memory.
  wait<0>();
  __syncthreads();
  float *so = (float *)sm, *sml = so + 4 * 16 * D;
#pragma unroll
  for (int i = 0; i < 16; i++)
    for (int e = 0; e < 2; e++) {
      so[(w * 16 + g) * D + i * 8 + t * 2 + e] = o[i][e];
      so[(w * 16 + g + 8) * D + i * 8 + t * 2 + e] = o[i][e + 2];
    }
  if (t == 0) {
    sml[(w * 16 + g) * 2] = m0;
    sml[(w * 16 + g) * 2 + 1] = l0;
    sml[(w * 16 + g + 8) * 2] = m1;
    sml[(w * 16 + g + 8) * 2 + 1] = l1;
  }
  __syncthreads();
  for (int i = tid; i < G * D; i += 128) {
    int r = i / D, d = i % D;
    float m = -1e30f;
    for (int k = 0; k < 4; k++) m = fmaxf(m, sml[(k * 16 + r) * 2]);
    float a = 0, ll = 0;
    for (int k = 0; k < 4; k++) {
      float e = ex2(sml[(k * 16 + r) * 2] - m);
      a += e * so[(k * 16 + r) * D + d];
      ll += e * sml[(k * 16 + r) * 2 + 1];
    }
    size_t oi = ((size_t)b * p.Hq + h * G + r) * p.splits + sp;
    p.out[oi * D + d] = a;
    if (d == 0) {
      p.sums[oi * 2] = m;
      p.sums[oi * 2 + 1] = ll;
    }
  }
}
