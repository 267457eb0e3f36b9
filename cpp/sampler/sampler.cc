// The sampler: every step is plain IEEE arithmetic in a fixed order, so equal logits give equal tokens on every
// machine. May depend on: base. Next for the token: engine/session.cc appends it and the loop starts over.
#include "sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

namespace kvart {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): a counter and a mixing
// function, so draw n of a seed is one computation. The upper 53 bits make a double in [0, 1).
double NextUniform(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

// exp(x) for x <= 0, to about an ulp; 0 below -700 and for NaN. Not std::exp: the last bit of that differs between C
// libraries, and a draw may hang on it. Branch-free, so that loops over it vectorise.
double ExpNegative(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits: n * kLn2High is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits of the mantissa
  const double clamped = x > -700.0 ? x : -700.0;
  const double shifted = clamped * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2, so 14 Taylor terms are enough
  double sum = 1.0 / 6227020800.0;
  sum = sum * r + 1.0 / 479001600.0;
  sum = sum * r + 1.0 / 39916800.0;
  sum = sum * r + 1.0 / 3628800.0;
  sum = sum * r + 1.0 / 362880.0;
  sum = sum * r + 1.0 / 40320.0;
  sum = sum * r + 1.0 / 5040.0;
  sum = sum * r + 1.0 / 720.0;
  sum = sum * r + 1.0 / 120.0;
  sum = sum * r + 1.0 / 24.0;
  sum = sum * r + 1.0 / 6.0;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const double scale = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);  // 2^n
  return x > -700.0 ? sum * scale : 0.0;
}

// The weight of a logit beside the best one: 1 for the best, also when that is +inf.
double Weight(float logit, float best, double temperature) {
  const double distance = static_cast<double>(logit) - static_cast<double>(best);
  return ExpNegative(logit == best ? 0.0 : distance / temperature);
}

// (n) -> the greatest, -inf when there is none; NaN is passed over. Independent lanes, so that the compiler vectorises
// it.
float Max(const float* x, size_t n) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -kInfinity);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  for (; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

// The highest logit's id, the lowest among equals; 0 when all are NaN.
int32_t ArgMax(std::span<const float> x) {
  constexpr size_t kBlock = 4096;  // the id is looked for in one block only
  float best = -kInfinity;
  size_t best_block = 0;
  for (size_t i = 0; i < x.size(); i += kBlock) {
    const float block_max = Max(x.data() + i, std::min(kBlock, x.size() - i));
    if (block_max > best) {
      best = block_max;
      best_block = i;
    }
  }
  // From best_block on: no earlier one holds the best, unless that is -inf, and then best_block is 0.
  const auto found = std::find(x.begin() + static_cast<ptrdiff_t>(best_block), x.end(), best);
  return found == x.end() ? 0 : static_cast<int32_t>(found - x.begin());
}

Status OutOfRange(const char* field, double value, const char* wanted) {
  return Errorf(StatusCode::kInvalidArgument, "%s is %g, wanted %s", field, value, wanted);
}

}  // namespace

Status CheckSamplerOptions(const SamplerOptions& options, int32_t n_vocab) {
  // Written so that NaN fails every test.
  if (!(options.temperature >= 0 && options.temperature < kInfinity)) {
    return OutOfRange("temperature", options.temperature, "a finite number from 0 up");
  }
  if (options.top_k < 0) return OutOfRange("top_k", options.top_k, "0 (off) or more");
  if (!(options.top_p >= 0 && options.top_p <= 1)) return OutOfRange("top_p", options.top_p, "0 to 1");
  if (!(options.min_p >= 0 && options.min_p <= 1)) return OutOfRange("min_p", options.min_p, "0 to 1");
  if (!(options.repetition_penalty > 0 && options.repetition_penalty < kInfinity)) {
    return OutOfRange("repetition_penalty", options.repetition_penalty, "a finite number above 0");
  }
  if (!std::isfinite(options.presence_penalty)) {
    return OutOfRange("presence_penalty", options.presence_penalty, "a finite number");
  }
  if (!std::isfinite(options.frequency_penalty)) {
    return OutOfRange("frequency_penalty", options.frequency_penalty, "a finite number");
  }
  if (options.penalty_window < -1) return OutOfRange("penalty_window", options.penalty_window, "-1 (all), 0 or more");
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= n_vocab) {
      return Errorf(StatusCode::kInvalidArgument, "logit_bias has token %d, wanted 0 to %d", id, n_vocab - 1);
    }
    if (std::isnan(bias)) {
      return Errorf(StatusCode::kInvalidArgument, "logit_bias of token %d is not a number", id);
    }
  }
  return Status::Ok();
}

Sampler::Sampler(SamplerOptions options) : options_(std::move(options)), state_(options_.seed) {}

bool Sampler::Better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

int32_t Sampler::Sample(std::span<const float> logits, std::span<const int32_t> history) {
  assert(!logits.empty());
  if (logits.empty()) return 0;
  const std::span<const float> x = Adjust(logits, history);
  const int32_t best_id = ArgMax(x);
  if (options_.temperature == 0) return best_id;

  const double u = NextUniform(&state_);
  const float best = x[static_cast<size_t>(best_id)];
  if (!(best > -kInfinity)) return best_id;  // nothing to choose from

  const bool top_k = options_.top_k > 0 && static_cast<size_t>(options_.top_k) < x.size();
  if (!top_k && options_.top_p >= 1 && options_.min_p <= 0) return DrawFromAll(x, best, u);
  if (top_k) {
    KeepTopK(x);
    double total = 0;
    for (const Candidate& c : candidates_) total += Weight(c.logit, best, 1.0);
    CutToMass(best, total);
  } else {
    const double total = KeepTopMass(x, best);
    CutToMass(best, total);
  }
  return DrawFromKept(best, u);
}

// Bias and penalties. Returns the logits themselves when there are none.
std::span<const float> Sampler::Adjust(std::span<const float> logits, std::span<const int32_t> history) {
  const auto n_vocab = static_cast<int64_t>(logits.size());
  const bool penalties =
      options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0;
  if (options_.penalty_window >= 0) {
    history = history.last(std::min(history.size(), static_cast<size_t>(options_.penalty_window)));
  }
  const bool penalize = penalties && !history.empty();
  if (!penalize && options_.logit_bias.empty()) return logits;

  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : options_.logit_bias) {
    if (id >= 0 && id < n_vocab) adjusted_[static_cast<size_t>(id)] += bias;
  }
  if (!penalize) return adjusted_;

  counts_.resize(logits.size());
  const auto in_range = [n_vocab](int32_t id) { return id >= 0 && id < n_vocab; };
  for (const int32_t id : history) {
    if (in_range(id)) ++counts_[static_cast<size_t>(id)];
  }
  for (const int32_t id : history) {
    if (!in_range(id)) continue;
    int32_t& count = counts_[static_cast<size_t>(id)];
    if (count == 0) continue;  // done at an earlier place of the same token
    float& logit = adjusted_[static_cast<size_t>(id)];
    // Keskar et al. 2019 divide; a negative logit is multiplied, or the penalty would be a reward.
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    logit -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(count);
    count = 0;
  }
  return adjusted_;
}

// No truncation: walks the vocabulary in the order of ids, without a sort.
int32_t Sampler::DrawFromAll(std::span<const float> logits, float best, double u) {
  weights_.resize(logits.size());
  const double temperature = options_.temperature;
  for (size_t i = 0; i < logits.size(); ++i) weights_[i] = Weight(logits[i], best, temperature);
  double total = 0;
  for (const double w : weights_) total += w;

  double left = u * total;
  size_t last = 0;  // rounding may leave a rest: it goes to the last token that has any weight
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    if (left < weights_[i]) break;
    left -= weights_[i];
  }
  return static_cast<int32_t>(last);
}

// candidates_: the k best, best first (Fan et al. 2018). A heap of k with the worst on top: nearly all of a vocabulary
// fails the one comparison with it.
void Sampler::KeepTopK(std::span<const float> logits) {
  const auto k = static_cast<size_t>(options_.top_k);
  candidates_.clear();
  float worst = -kInfinity;  // of k candidates; a later equal has a higher id and loses
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > worst)) continue;  // NaN and -inf end here as well
    if (candidates_.size() == k) {
      std::pop_heap(candidates_.begin(), candidates_.end(), Better);
      candidates_.pop_back();
    }
    candidates_.push_back({logits[i], static_cast<int32_t>(i)});
    std::push_heap(candidates_.begin(), candidates_.end(), Better);
    if (candidates_.size() == k) worst = candidates_.front().logit;
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), Better);
}

// candidates_: the fewest steps of 1/16 in weight below the best that hold top_p of the mass, but nothing under min_p;
// best first. Returns the mass of all. So only the head of the vocabulary is ever sorted.
double Sampler::KeepTopMass(std::span<const float> logits, float best) {
  weights_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) weights_[i] = Weight(logits[i], best, 1.0);
  double total = 0;
  for (const double w : weights_) total += w;

  const double least = std::max<double>(options_.min_p, std::numeric_limits<double>::min());
  const double wanted = options_.top_p < 1 ? options_.top_p * total : kInfinity;
  double cut = 1.0;
  double mass = 0;
  do {
    cut = wanted < kInfinity ? std::max(cut / 16, least) : least;
    mass = 0;
    for (const double w : weights_) mass += w >= cut ? w : 0;
  } while (mass < wanted && cut > least);

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] >= cut) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::sort(candidates_.begin(), candidates_.end(), Better);
  return total;
}

// Top-p (Holtzman et al. 2020: the token that reaches p belongs to the set) and min-p (Nguyen et al. 2024) over sorted
// candidates: both keep a head of the list, and the best always stays.
void Sampler::CutToMass(float best, double total) {
  const double wanted = options_.top_p * total;
  const double least = options_.min_p;
  double mass = 0;
  size_t kept = 0;
  for (const Candidate& c : candidates_) {
    const double w = Weight(c.logit, best, 1.0);
    if (kept > 0 && (w < least || (options_.top_p < 1 && mass >= wanted))) break;
    mass += w;
    ++kept;
  }
  candidates_.resize(kept);
}

int32_t Sampler::DrawFromKept(float best, double u) {
  weights_.resize(candidates_.size());
  double total = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    weights_[i] = Weight(candidates_[i].logit, best, options_.temperature);
    total += weights_[i];
  }
  double left = u * total;
  size_t last = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) break;  // sorted: the rest has none either
    last = i;
    if (left < weights_[i]) break;
    left -= weights_[i];
  }
  return candidates_[last].id;
}

}  // namespace kvart
