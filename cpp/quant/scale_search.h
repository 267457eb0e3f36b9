// Inside quant only: the scale, and the minimum, with which a few values lose least when they become small integers.
// May depend on: nothing. Next stop: encode_k.cc and quantize.cc string such groups into blocks.
//
// A group of values x with weights w becomes integers q in [low, high] with value = scale * q + min. For given integers
// the best scale and min solve a linear least-squares problem; for given scale and min the best integers are the
// nearest. The search starts from several scales, goes back and forth between the two, and keeps what has the smallest
// weighted error. All sums run in one fixed order, so a result is the same bits everywhere.
#pragma once

#include <cstdint>

namespace kvart::quant_internal {

enum class MinKind {
  kNone,      // min = 0, the scale may be negative
  kNegative,  // min ≤ 0, scale ≥ 0
  kFree,      // any min, scale ≥ 0
};

// What a group's integers may be, and from where the search begins.
struct Codes {
  int low;
  int high;
  MinKind min;
};

struct Fit {
  float scale = 0;
  float min = 0;
  float error = 0;  // sum of w * (x - scale * q - min)²
};

// x, w: (n,), n a multiple of 16; w ≥ 0 and not all zero where x is not all zero.
Fit FindScale(const Codes& codes, int n, const float* x, const float* w);

// The error with these, integers rounded to nearest.
float ErrorOf(const Codes& codes, int n, const float* x, const float* w, float scale, float min);

// The integers themselves: q: (n,), each the nearest for its value.
void Round(const Codes& codes, int n, const float* x, float scale, float min, int8_t* q);

}  // namespace kvart::quant_internal
