// What all kernels share: types, conversions, reductions and the PTX instructions that CUDA C has no
// words for. There are no headers of CUDA's: NVRTC needs none for this.
//
// A kernel has one parameter, a struct, of which gen makes the Go mirror (params.go): its fields are
// pointers, int and float. No sum depends on the grid or on the rows beside its own.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DI __device__ __forceinline__

// EACH has the threads of a grid of any size walk the elements up to n.
#define EACH(n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)

// Types of 16 bits that numbers are stored in, and float.
enum { BF16 = 0, F16 = 1, F32 = 2 };

DI float bf16_float(u16 v) { return __uint_as_float((u32)v << 16); }

DI float f16_float(u16 v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
  return r;
}

DI u16 float_bf16(float v) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}

DI u16 float_f16(float v) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}

DI float from_half(u16 v, int type) { return type == F16 ? f16_float(v) : bf16_float(v); }
DI u16 to_half(float v, int type) { return type == F16 ? float_f16(v) : float_bf16(v); }

// keep_half keeps a number in 16 bits beside, for products, which are of float where models are.
DI void keep_half(u16* p, float v, int type) {
  if (type != F32) *p = to_half(v, type);
}

// Codes of a byte: integers, and e4m3 (OCP 8-bit Floating Point Specification, 5.1). A vector of them
// has a scale.
enum { CODE_I8 = 3, CODE_E4M3 = 4 };

// code_float is the number of a code. Binary16 has the bits of e4m3 for a number 2^8 times smaller.
DI float code_float(u8 code, int type) {
  if (type == CODE_I8) return (float)(signed char)code;
  return 256.0f * f16_float((u16)((code & 0x80) << 8 | (code & 0x7f) << 7));
}

// float_code rounds a number to the nearest code, of two the even one, within the largest ones.
DI u8 float_code(float v, int type) {
  if (type == CODE_I8) return (u8)(signed char)__float2int_rn(fminf(fmaxf(v, -127.0f), 127.0f));
  const float a = fminf(fabsf(v), 448.0f);
  const u32 sign = __float_as_uint(v) >> 24 & 0x80;
  if (a < 0.015625f) return (u8)(sign | __float2int_rn(a * 512.0f));  // below 2^-6 steps are 2^-9
  u32 bits = __float_as_uint(a);
  bits += 0x7ffff + (bits >> 20 & 1);
  return (u8)(sign | ((bits >> 20) - (120 << 3)));
}

// load is element i of numbers of a type.
DI float load(const void* p, size_t i, int type) {
  if (type == F32) return ((const float*)p)[i];
  return from_half(((const u16*)p)[i], type);
}

// load_now is a number, 0 if it is not there. It is loaded here, not where it is used first: so many
// can be on their way together.
DI u32 load_now(const u32* p, bool there) {
  u32 v = 0;
  asm volatile("{\n.reg .pred there;\nsetp.ne.s32 there, %2, 0;\n@there ld.global.u32 %0, [%1];\n}"
               : "+r"(v) : "l"(p), "r"((int)there) : "memory");
  return v;
}

DI float load_now(const float* p, bool there) {
  return __uint_as_float(load_now((const u32*)p, there));
}

// exp2_ is 2^x to 2 ulp; exp_ is e^x by it.
DI float exp2_(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

#define LOG2E 1.4426950408889634f
#define NEG_INF __int_as_float(0xff800000)

DI float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// warp_sum adds the lanes' values: as a butterfly, so that every lane has the same bits.
DI float warp_sum(float v) {
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
  return v;
}

DI float warp_max(float v) {
#pragma unroll
  for (int i = 16; i > 0; i >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
  return v;
}

// block_sum adds the values of all threads, warps in their order; parts has a place for each warp.
// It has one barrier: parts may be used again after another one that follows.
DI float block_sum(float v, float* parts) {
  const int warps = blockDim.x >> 5;
  v = warp_sum(v);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
  __syncthreads();
  v = 0;
  for (int i = 0; i < warps; i++) v += parts[i];
  return v;
}

// tree adds 1, 2, 4 or 8 numbers that lie stride apart, as a balanced tree.
DI float tree(const float* p, size_t stride, int chunks) {
  if (chunks == 1) return p[0];
  float a = p[0] + p[stride];
  if (chunks == 2) return a;
  float b = a + (p[2 * stride] + p[3 * stride]);
  if (chunks == 4) return b;
  return b + ((p[4 * stride] + p[5 * stride]) + (p[6 * stride] + p[7 * stride]));
}

// encode makes codes of a vector, by one warp, and the scale that they are to be multiplied by: a
// given one, unless it is 0, of e4m3, else that by which the largest number becomes the largest code.
// One with a number that is not finite has a scale that is none.
DI void encode(u8* codes, float* scale, const float* x, int dim, float given, int type) {
  const int lane = threadIdx.x & 31;
  float largest = 0.0f;
  int sound = 1;
  for (int i = lane; i < dim; i += 32) {
    largest = fmaxf(largest, fabsf(x[i]));
    sound = sound && fabsf(x[i]) < __int_as_float(0x7f800000);
  }
  largest = warp_max(largest);
  sound = __all_sync(~0u, sound);
  const float s = type == CODE_E4M3 && given != 0.0f ? given : largest / (type == CODE_I8 ? 127.0f : 448.0f);
  const float by = sound && s != 0.0f ? 1.0f / s : 0.0f;
  for (int i = lane; i < dim; i += 32) codes[i] = by != 0.0f ? float_code(x[i] * by, type) : (u8)0;
  if (lane == 0) *scale = sound ? s : __int_as_float(0x7fc00000);
}

// Place is where a vector of a paged KV cache lies, and of codes its scale: those of a head's
// positions in a block follow their codes.
struct Place {
  u8* vector;
  float* scale;
};

// vector_at is the vector at an offset of a unit, which is a head in a block, of so many bytes.
DI Place vector_at(void* cache, size_t unit, size_t head, int offset, int padded, int block_size,
                   int type) {
  u8* p = (u8*)cache + unit * head;
  const int size = type == F32 ? 4 : type >= CODE_I8 ? 1 : 2;
  return {p + (size_t)offset * padded * size, (float*)(p + (size_t)block_size * padded) + offset};
}

DI u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// copy16 copies bytes to shared memory and makes the rest of 16 zero; it lands when it is waited
// for. Both addresses are multiples of 16, from is valid where bytes is 0, too.
DI void copy16(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

DI void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// copies_wait waits for all groups of copies but the last n.
template <int n>
DI void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory"); }

// load8 and load16 load so many bytes of shared memory.

DI void load8(u32* v, u32 address) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(address) : "memory");
}

DI void load16(u32* v, u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(address) : "memory");
}

// matrices4 loads four 8x8 matrices of 16 bits, of which lanes 8i to 8i+7 have the rows' addresses.
DI void matrices4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

DI void matrices4_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// multiply adds a 16x16 by 16x8 product to c (mma.m16n8k16, PTX ISA 9.7.14.5.8): of lane 4g+t, c
// has rows g and g+8, columns 2t and 2t+1.
template <int type>
DI void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if (type == F16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// pack is two numbers side by side, lo in the lower half.
template <int type>
DI u32 pack(float lo, float hi) {
  u32 r;
  if (type == F16) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// multiply_add is a*b + c of pairs, each rounded once.
template <int type>
DI u32 multiply_add(u32 a, u32 b, u32 c) {
  u32 r;
  if (type == F16) asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  else asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// keep_halves is keep_half of a vector, to 8 aligned bytes.
DI void keep_halves(u16* p, float4 v, int type) {
  uint2* to = (uint2*)p;
  if (type == BF16) *to = make_uint2(pack<BF16>(v.x, v.y), pack<BF16>(v.z, v.w));
  if (type == F16) *to = make_uint2(pack<F16>(v.x, v.y), pack<F16>(v.z, v.w));
}
