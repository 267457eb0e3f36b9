// A matrix product with everything it points to, to be run with any table's kernel.
// May depend on: kernels, quant.
#pragma once

#include <algorithm>

#include "kernels/kernel_testing.h"

namespace kvart::testing {

struct Product {
  DType type = DType::kF32;
  Activations activations = Activations::kFloat;
  int64_t rows = 0, cols = 0, n = 0;
  std::vector<uint8_t> weights;         // GGUF rows
  std::vector<float> x;                 // (n, cols)
  std::vector<ActivationBlock> blocks;  // (n, cols / 32)
  std::vector<float> bias, before;      // (rows), (n, rows); empty: none

  Product(Random& random, DType t, Activations a, int64_t r, int64_t c, int64_t tokens, int fill = -1)
      : type(t), activations(a), rows(r), cols(c), n(tokens) {
    weights = RandomWeights(random, type, rows, cols, fill);
    SetActivations(Uniforms(random, n * cols));
  }
  void SetActivations(std::vector<float> values) {
    x = std::move(values);
    blocks.resize(x.size() / 32);
    Scalar().quantize(x.data(), static_cast<int64_t>(blocks.size()), blocks.data());
  }

  // (count, row_end - row_begin) for tokens first … first + count - 1. `shift`: bytes that unpacked weights are moved
  // by.
  std::vector<float> Run(const MatmulKernel& kernel, int64_t row_begin, int64_t row_end, int64_t first, int64_t count,
                         size_t shift = 0) const {
    const size_t bytes = static_cast<size_t>(PackedBytes(type, kernel.packing, rows, cols));
    Room matrix(bytes, kernel.packing == Packing::kRows ? shift : 0);
    if (kernel.packing == Packing::kRows) {
      std::memcpy(matrix.data(), weights.data(), bytes);
    } else {
      PackX8(type, weights.data(), rows, cols, 0, (rows + 7) / 8, matrix.data());
    }
    return RunPacked(kernel, matrix.data(), row_begin, row_end, first, count);
  }
  std::vector<float> Run(const MatmulKernel& kernel) const { return Run(kernel, 0, rows, 0, n); }

  std::vector<float> RunPacked(const MatmulKernel& kernel, const uint8_t* matrix, int64_t row_begin, int64_t row_end,
                               int64_t first, int64_t count) const {
    constexpr float kUntouched = 12345.0f;
    Room scratch(MatmulScratchBytes(cols));
    const int64_t width = row_end - row_begin, stride = width + 3;
    std::vector<float> out(static_cast<size_t>((count + 1) * stride), kUntouched);  // and a token not asked for
    for (int64_t i = 0; i < count && !before.empty(); ++i) {
      const float* from = &before[static_cast<size_t>((first + i) * rows + row_begin)];
      std::copy(from, from + width, &out[static_cast<size_t>(i * stride)]);
    }
    MatmulArgs args;
    args.weights = matrix;
    args.cols = cols;
    args.row_begin = row_begin;
    args.row_end = row_end;
    if (kernel.activations == Activations::kInt8)
      args.x = blocks.data() + first * cols / 32;
    else
      args.x = x.data() + first * cols;
    args.n = count;
    args.out = out.data();
    args.out_stride = stride;
    args.bias = bias.empty() ? nullptr : bias.data();
    args.accumulate = !before.empty();
    args.scratch = scratch.data();
    kernel.run(args);

    std::vector<float> result(static_cast<size_t>(count * width));
    for (int64_t i = 0; i < count; ++i) {
      const float* row = &out[static_cast<size_t>(i * stride)];
      std::copy(row, row + width, result.begin() + static_cast<std::ptrdiff_t>(i * width));
      for (int64_t r = width; r < stride; ++r)
        EXPECT_EQ(row[r], kUntouched) << "token " << i << " wrote beyond its rows";
    }
    for (int64_t r = 0; r < stride; ++r)
      EXPECT_EQ(out[static_cast<size_t>(count * stride + r)], kUntouched) << "wrote a token too many";
    return result;
  }
};

// The combinations of a type and an activation mode that exist.
struct Mode {
  DType type;
  Activations activations;
};
inline std::vector<Mode> AllModes() {
  std::vector<Mode> modes;
  for (const DType type : kAllTypes) {
    modes.push_back({type, Activations::kFloat});
    if (!IsFloat(type)) modes.push_back({type, Activations::kInt8});
  }
  return modes;
}
inline std::string ModeName(const Mode& mode) {
  return std::string(Info(mode.type).name) + (mode.activations == Activations::kInt8 ? "_i8" : "_f32");
}

}  // namespace kvart::testing
