// From logits to the next token: penalties, truncation, temperature, a seeded draw.
// May depend on: base. Next for the token: engine/session.cc appends it and the loop starts over.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvart {

struct SamplerOptions {
  float temperature = 0.0f;         // 0 is greedy: the highest logit, the lowest id among equals
  int top_k = 0;                    // keep the k highest; 0 is off
  float top_p = 1.0f;               // keep the smallest set whose probability reaches p; 1 is off
  float min_p = 0.0f;               // keep tokens at least this fraction as probable as the best; 0 is off
  float repetition_penalty = 1.0f;  // Keskar et al. 2019 (CTRL): positive logits divided, negative multiplied; 1 is off
  float presence_penalty = 0.0f;    // subtracted once from the logit of each token seen
  float frequency_penalty = 0.0f;   // subtracted as often as it was seen
  int penalty_window = 64;          // how many of the newest tokens the three penalties look at; -1: all, 0: none
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the raw logits
  uint64_t seed = 0;
};

// InvalidArgument names the field, the value found and the range wanted (NaN is out of every range).
Status CheckSamplerOptions(const SamplerOptions& options, int32_t n_vocab);

// The steps of a draw, in this order: bias, penalties (repetition first), top-k, top-p, min-p, temperature, draw. The
// three truncations look at the probabilities before temperature (top-p at those of the tokens that top-k left), so a
// high temperature cannot bring back what they dropped.
//
// Holds the state of the random generator; one thread at a time. The draw depends on the options, the seed, the number
// of draws before, and the logits: on nothing else, and is the same on every platform. A greedy step draws nothing; any
// other one number.
class Sampler {
 public:
  explicit Sampler(SamplerOptions options);  // checked before

  // logits: (n_vocab), not empty, left as they are. history: the session's tokens so far, newest last; ids out of range
  // are passed over. NaN logits never win; -inf wins only when nothing else is there, and then without a draw. Returns
  // the id of the chosen token.
  int32_t Sample(std::span<const float> logits, std::span<const int32_t> history);

  const SamplerOptions& options() const { return options_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  static bool Better(const Candidate& a, const Candidate& b);  // higher first, then the lower id

  std::span<const float> Adjust(std::span<const float> logits, std::span<const int32_t> history);
  int32_t DrawFromAll(std::span<const float> logits, float best, double u);
  void KeepTopK(std::span<const float> logits);
  double KeepTopMass(std::span<const float> logits, float best);
  void CutToMass(float best, double total);
  int32_t DrawFromKept(float best, double u);

  SamplerOptions options_;
  uint64_t state_;
  // Room kept between calls, so that a step allocates nothing after the first.
  std::vector<float> adjusted_;  // (n_vocab) logits after bias and penalties
  std::vector<int32_t> counts_;  // (n_vocab) all 0 between calls
  std::vector<double> weights_;  // (n_vocab) or (kept): exp of the distance to the best logit
  std::vector<Candidate> candidates_;
};

}  // namespace kvart
