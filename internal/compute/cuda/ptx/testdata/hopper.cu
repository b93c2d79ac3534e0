// C = A B^T in bf16 with float32 sums, as kernels for sm_90a do it: a producer warp fetches tiles
// by tensor copies into two stages, a warp group multiplies them with wgmma, and a tensor copy
// stores the result. M and N are multiples of 64, K of 64.
//   nvrtc 12.9 --gpu-architecture=compute_90a --std=c++17 -default-device
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

struct alignas(64) Map { u64 opaque[16]; };

__device__ __forceinline__ u32 shared_address(const void *p) {
  return (u32)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void init(u32 bar, u32 n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n) : "memory");
}
__device__ __forceinline__ void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void wait(u32 bar, u32 parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
      " @done bra end; bra again; end: }" ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void fetch(u32 dst, const Map *map, int x, int y, u32 bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
// A tile of 64 rows of 64 bf16 with the 128-byte swizzle: a KiB from 8 rows to the next.
__device__ __forceinline__ u64 descriptor(u32 at) {
  return (u64)(at >> 4 & 0x3fff) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

extern "C" __global__ void __launch_bounds__(160)
gemm(const __grid_constant__ Map a, const __grid_constant__ Map b,
     const __grid_constant__ Map c, int k) {
  extern __shared__ __align__(1024) u8 memory[];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 full = base + 49152, empty = full + 16;
  const int tid = threadIdx.x, tiles = k / 64;
  if (tid == 0) {
    for (int s = 0; s < 2; s++) {
      init(full + 8 * s, 1);
      init(empty + 8 * s, 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (tid >= 128) {
    if (tid == 128)
      for (int i = 0; i < tiles; i++) {
        const int s = i & 1;
        if (i >= 2) wait(empty + 8 * s, (i / 2 - 1) & 1);
        expect(full + 8 * s, 16384);
        fetch(base + 16384 * s, &a, i * 64, blockIdx.y * 64, full + 8 * s);
        fetch(base + 16384 * s + 8192, &b, i * 64, blockIdx.x * 64, full + 8 * s);
      }
    return;
  }
  float d[32];
#pragma unroll
  for (int i = 0; i < 32; i++) d[i] = 0;
  for (int i = 0; i < tiles; i++) {
    const int s = i & 1;
    wait(full + 8 * s, i / 2 & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int j = 0; j < 4; j++) {
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
          "%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
            "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
            "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
            "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
          : "l"(descriptor(base + 16384 * s + 32 * j)),
            "l"(descriptor(base + 16384 * s + 8192 + 32 * j)));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    arrive(empty + 8 * s);
  }
  // The result as bf16 in rows of 64, without a swizzle.
  const u32 out = base + 32768;
  const int warp = tid / 32, lane = tid % 32;
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 packed;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
          : "=r"(packed) : "f"(d[4 * j + 2 * h + 1]), "f"(d[4 * j + 2 * h]));
      const int row = warp * 16 + lane / 4 + 8 * h, col = j * 8 + lane % 4 * 2;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(out + row * 128 + col * 2), "r"(packed)
                   : "memory");
    }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (tid == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::
            "l"(&c), "r"(blockIdx.x * 64), "r"(blockIdx.y * 64), "r"(out) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
