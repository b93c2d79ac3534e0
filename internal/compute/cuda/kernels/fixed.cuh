// Sums of mixtures' terms, which do not depend on who adds what.
#pragma once
#include "rt.cuh"

// Fixed is a sum of numbers that are rounded to multiples of 2^-30 first, so that it is exact: a
// multiple of 2^-8, below 2^16, and what is left, at most 2^-9. Eight of these are added exactly as
// well. What is larger is added as floats are, rounded.
struct Fixed {
  float high, low;
  static DI float round(float v, float unit) {  // to multiples of unit, while below 2^22 of them
    return __fadd_rn(__fadd_rn(v, 1.5f * (1 << 23) * unit), -1.5f * (1 << 23) * unit);
  }
  DI void add(float weight, float x) {
    const float cut = 1.5f * (1 << 15), h = __fadd_rn(__fmaf_rn(weight, x, cut), -cut);
    join(h, round(__fmaf_rn(weight, x, -h), 0x1p-30f));
  }
  DI void join(float h, float l) {  // another such sum, or number
    high = __fadd_rn(high, h);
    low = __fadd_rn(low, l);
    const float carry = round(low, 0x1p-8f);
    high = __fadd_rn(high, carry);
    low = __fadd_rn(low, -carry);
  }
  DI float whole() const { return __fadd_rn(high, low); }
};
