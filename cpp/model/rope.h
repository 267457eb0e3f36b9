// Rotary position embedding: the angles of a position under every kind of scaling. May depend on: base, model/config.
// Next for the token: model/decoder.cc hands the table of a batch to the backend.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kvart {

// RoFormer (Su et al. 2021) with position interpolation (Chen et al. 2023), NTK-aware base (bloc97 2023) or YaRN (Peng
// et al. 2023). Immutable; safe to share.
class Rope {
 public:
  Rope(const RopeConfig& config, int head_dim);

  // cos and sin of each pair, times YaRN's magnitude: out (head_dim / 2, 2)
  void Angles(int64_t pos, float* out) const;
  // The same without the magnitude: a turn by `positions`, which may be negative.
  void Turn(int64_t positions, float* out) const;

 private:
  void Write(int64_t pos, double magnitude, float* out) const;

  std::vector<double> frequency_;  // (head_dim / 2), radians a token
  double magnitude_ = 1.0;
};

}  // namespace kvart
