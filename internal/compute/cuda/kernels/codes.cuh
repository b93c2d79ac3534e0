// Quantised weights as kernels for products read them: codes of 4 or 8 bits in tiles, of which each
// thread makes the numbers of 16 bits that it multiplies by, and the scales and offsets of groups.
#pragma once
#include "rt.cuh"

// What codes stand for: of 4 bits consecutive integers, e2m1 or the numbers of a table, of 8 bits
// integers or e4m3.
enum { LINEAR = 0, E2M1 = 1, TABLE = 2, INTEGERS = 3, E4M3 = 4 };

struct Quantised {
  const float* numbers;  // of a table
  u64 scale;             // address of [groups][ldscale], of output features; odd for float16
  u64 offset;            // as scale; 0 for none
  const u64* scales;     // of experts
  const u64* offsets;    // null for none
  // Input feature c of the matrix is in group (lead+c)/group: groups are multiples of 16, and divide
  // 64 where they are smaller. ALL is one group of whatever there is.
  int group, lead, ldscale;
  int smaller;           // how many groups 64 features are of, 0 for less than one
  int form;
  int shift;             // a pair of what codes are added to, or multiplied by, to be numbers
};

enum { ALL = 1 << 30 };

// skipped is how many input features lie before a chunk that begins at one of them: so that groups
// begin with products, a chunk's products begin with the 16 of its group that it begins in. Features
// of the chunk before count as zeros.
DI int skipped(int group, int lead, int begin) { return group == ALL ? 0 : (lead + begin) & 15; }

// masked is v & mask | or_, in one instruction: the compiler makes two of it.
DI u32 masked(u32 v, u32 mask, u32 or_) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(or_));
  return r;
}

// unpacked makes the operand that a thread multiplies by of its 8 codes: numbers of 16 bits, exact
// but for those of a table. Codes of 4 bits are consecutive integers, e2m1, or places in a table of pairs.
template <int type, int form>
DI void unpacked(u32 (&a)[4], const u32* codes, u32 shift, const u32* pairs) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (form == LINEAR) {
      // 128 (or 1,024) and a code is a number whose last bits are the code's.
      const u32 one = pack<type>(1, 1), high = type == F16 ? 0x64006400u : 0x43004300u;
      a[i] = multiply_add<type>(masked(codes[0] >> (4 * i), 0x000f000fu, high), one, shift);
    } else if (form == E2M1) {
      // The bits of e2m1 are a sign, and exponent and mantissa of a number that is smaller 2^126
      // times, or 2^14.
      u32 v = codes[0] >> (4 * i), sign = (v & 0x00080008u) << 12;
      v = type == F16 ? (v & 0x00070007u) << 9 : (v & 0x00070007u) << 6;
      a[i] = multiply_add<type>(sign | v, shift, 0x80008000u);
    } else if (form == TABLE) {
      u32 v = codes[0] >> (4 * i);
      a[i] = pairs[(v & 15u) | (v >> 12 & 0xf0u)];
    } else if (form == E4M3) {
      // So are those of e4m3: 2^120 times, or 2^8.
      u32 v = __byte_perm(codes[i & 1], 0, i < 2 ? 0x1404 : 0x3424);
      v = (v & 0x80008000u) | (type == F16 ? v >> 1 & 0x3f803f80u : v >> 4 & 0x07f007f0u);
      a[i] = multiply_add<type>(v, shift, 0x80008000u);
    } else {
      // 2^23 + 128 + an integer is a float whose last byte is that of the integer.
      u32 v = codes[i & 1] ^ 0x80808080u;
      float lo = __uint_as_float(__byte_perm(v, 0x4b000000u, i < 2 ? 0x7440 : 0x7442));
      float hi = __uint_as_float(__byte_perm(v, 0x4b000000u, i < 2 ? 0x7441 : 0x7443));
      a[i] = pack<type>(lo - 8388736.0f, hi - 8388736.0f);
    }
  }
}

// pair_up makes the table of pairs of a block: two codes have a byte.
template <int type, int threads>
DI void pair_up(u32* pairs, const Quantised& q) {
  for (int i = threadIdx.x; i < 256; i += threads)
    pairs[i] = pack<type>(q.numbers[i & 15], q.numbers[i >> 4]);
}

DI float factor_at(u32 address, int feature, int half) {
  if (half) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address + 2 * feature) : "memory");
    return f16_float(v);
  }
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address + 4 * feature) : "memory");
  return v;
}

// Groups is a place among the groups of a chunk's input features.
struct Groups {
  int row, at;  // a group, and how many of its features lie before the place
  int size;     // of a group
  int count;    // how many groups a step is of, 0 for less than one,
  int smaller;  // and after which of its products they end

  DI Groups(const Quantised& q, int c)
      : row((q.lead + c) / q.group), at((q.lead + c) % q.group), size(q.group), count(q.smaller),
        smaller(0) {
    for (int k = 0; count && k < 4; k++)
      if ((at + 16 * (k + 1)) % size == 0) smaller |= 1 << k;
  }

  // step passes 64 features, and says after which of their four products a group ends: bit k for
  // number k.
  DI int step() {
    if (count) {
      row += count;
      return smaller;
    }
    at += 64;
    if (at < size) return 0;
    at -= size;
    row++;
    return 8 >> at / 16;
  }
};

// Form is what codes stand for, and whether groups have offsets.
template <int n, bool some>
struct Form {
  enum { value = n, offsets = some };
};
