// What a weight matrix was multiplied with, as far as choosing its quantization goes: the sum of squares of each column
// of its inputs. May depend on: nothing. Next stop: nothing in inference; `kvart eval imatrix` reads these sums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvart {

struct InputSquares {
  std::string matrix;        // the tensor's name
  int64_t rows = 0;          // inputs seen
  std::vector<double> sums;  // (cols of the matrix): sum over the inputs of the squares

  // Columns [begin, end) of n inputs; x points to column `begin` of the first, `stride` values apart. Threads may share
  // the columns out. The caller counts rows.
  void Add(const float* x, int64_t n, int64_t stride, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = begin; c < end; ++c) {
        const double value = x[i * stride + c - begin];
        sums[static_cast<size_t>(c)] += value * value;
      }
    }
  }
};

}  // namespace kvart
