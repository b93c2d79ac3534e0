// What the compiler makes of CUDA C's own functions and types: each thread writes a row of results.
//   nvrtc 12.1 and 12.9 --gpu-architecture=compute_80 --std=c++17 -default-device
typedef unsigned long long u64;
typedef unsigned int u32;

#define FLOATS 24
#define WORDS 24

extern "C" __global__ void floats(const float *x, const float *y, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float a = x[i], b = y[i], *r = out + i * FLOATS;
  r[0] = expf(a);
  r[1] = logf(fabsf(a));
  r[2] = sinf(a * 100000.f);  // the slow way of large angles, with a table and local memory
  r[3] = cosf(b);
  r[4] = tanhf(a);
  r[5] = powf(fabsf(a), b);
  r[6] = a / b;
  r[7] = sqrtf(fabsf(a));
  r[8] = rsqrtf(fabsf(b));
  r[9] = fmodf(a, b);
  r[10] = erff(a);
  r[11] = log1pf(fabsf(b));
  r[12] = exp2f(a);
  r[13] = fmaf(a, b, 1.f);
  r[14] = floorf(a) + ceilf(b) * 4.f;
  r[15] = roundf(a) + truncf(b) + rintf(a * 3.f);
  r[16] = __expf(a);
  r[17] = __fdividef(a, b);
  r[18] = copysignf(a, b) + fdimf(a, b);
  r[19] = (float)((double)a * b + 1e-3);
  r[20] = cbrtf(a);
  r[21] = expm1f(a);
  r[22] = hypotf(a, b);
  r[23] = a > b ? atan2f(a, b) : asinf(a * 0.01f);
}

struct Pair {
  int a;
  short b[6];
};
__constant__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ __noinline__ int collatz(u32 n) {
  int steps = 0;
  while (n > 1 && steps < 200) {
    n = n & 1 ? 3 * n + 1 : n / 2;
    steps++;
  }
  return steps;
}

extern "C" __global__ void words(const u32 *x, const u32 *y, u64 *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 a = x[i], b = y[i] | 1;
  u64 w = (u64)a << 32 | b, *r = out + (u64)i * WORDS;
  r[0] = a / b + (u64)(a % b) * 7;
  r[1] = (u64)((int)a / (int)b);
  r[2] = w / (b | (u64)a << 7 | 1);
  r[3] = w % (a + 3ull);
  r[4] = (u64)((long long)w / ((long long)(int)b | 1));
  r[5] = __popc(a) + __clz(b) + __ffs(a) + __brev(b);
  r[6] = __popcll(w) + __clzll(w) + __brevll(w);
  r[7] = __byte_perm(a, b, 0x2705);
  r[8] = __funnelshift_l(a, b, a & 63);
  r[9] = __umulhi(a, b) + (u64)__mulhi((int)a, (int)b) + __umul64hi(w, w);
  r[10] = (unsigned char)a + (signed char)b + (short)(a >> 3) + (unsigned short)b;
  r[11] = (u64)(char)(a >> 8) << 3 ^ (u64)(short)b;
  r[12] = a >> (b & 31) | a << (32 - (b & 31) & 31);
  r[13] = (u64)((long long)w >> (a & 63));
  r[14] = min((int)a, (int)b) + max(a, b) + abs((int)a);
  r[15] = primes[a & 7] * primes[b & 7];
  Pair p;
  p.a = (int)a;
  for (int k = 0; k < 6; k++) p.b[(k + a) % 6] = (short)(b >> k);
  r[16] = (u64)p.b[a % 6] + p.b[b % 6];
  r[17] = collatz(a & 0xffff) + 1000 * collatz(b & 0xff);
  u64 sum = 0;
  for (u32 k = 0; k < (a & 15); k++) {
    if (k == (b & 7)) continue;
    sum += k * b;
    if (sum > 1000000) break;
  }
  r[18] = sum;
  switch (a % 7) {
    case 0: r[19] = 11; break;
    case 1: r[19] = b; break;
    case 2: r[19] = a ^ b; break;
    case 3: r[19] = a + b; break;
    case 4: r[19] = w; break;
    default: r[19] = a % 7;
  }
  r[20] = (u64)(int)(float)(int)a + (u64)(u32)((float)(b >> 8) * 2.5f);
  r[21] = (u64)((double)w * 0.5) ^ (u64)(long long)(-(double)a);
  int dot;
  asm("dp4a.s32.s32 %0, %1, %2, 5;" : "=r"(dot) : "r"(a), "r"(b));
  r[22] = dot;
  r[23] = __sad((int)a >> 3, (int)b >> 2, 9u);
}
