// Scores, softmax and mixes over K/V pages of every format: each table equals the scalar one bit for bit, and the
// scalar one is right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernel_testing.h"
#include "kernels/kernels.h"
#include "quant/half.h"

namespace kvart {
namespace {

struct Case {
  KvFormat format;
  bool keys;
  int tokens, head_dim;
  std::vector<uint8_t> bytes;
  std::vector<float> values;  // (tokens, head_dim): what the bytes stand for
};

// Keys like Qwen's: a few channels far away from zero.
std::vector<uint16_t> Rows(int tokens, int head_dim, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> bias(static_cast<size_t>(head_dim));
  for (float& b : bias) b = rng() % 8 == 0 ? normal(rng) * 100 : normal(rng);
  std::vector<uint16_t> x;
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < head_dim; ++c) x.push_back(FloatToHalf(bias[static_cast<size_t>(c)] + normal(rng)));
  }
  return x;
}

Case Make(KvFormat format, bool keys, int tokens, int head_dim, int first, std::mt19937& rng) {
  Case out{format, keys, tokens, head_dim, {}, std::vector<float>(static_cast<size_t>(tokens * head_dim))};
  const std::vector<uint16_t> x = Rows(tokens, head_dim, rng);
  if (format.is_float()) {
    const size_t size = format.code == KvCode::kF16 ? 2 : 4;
    out.bytes.resize(x.size() * size);
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < head_dim; ++c) {
        const size_t from = static_cast<size_t>(t * head_dim + c);
        const size_t to = keys ? static_cast<size_t>((t / 8 * head_dim + c) * 8 + t % 8) : from;
        const float v = HalfToFloat(x[from]);
        if (size == 2)
          std::memcpy(out.bytes.data() + to * 2, &x[from], 2);
        else
          std::memcpy(out.bytes.data() + to * 4, &v, 4);
        out.values[from] = v;
      }
    }
    return out;
  }
  const KvBlock block(format, keys, tokens, head_dim);
  out.bytes.resize(block.bytes());
  block.Encode(x.data(), first, out.bytes.data());
  block.Decode(out.bytes.data(), out.values.data());
  return out;
}

std::vector<KvFormat> Formats(bool keys) {
  std::vector<KvFormat> formats;
  for (const char* name : {"f32", "f16", "int8", "int8-g32", "int4", "int4-sym", "int4-token", "int4-token-g32",
                           "int4-knorm", "int4-g32", "int4-g64"}) {
    const KvFormats parsed = ParseKvFormats(name, name).value();
    formats.push_back(keys ? parsed.k : parsed.v);
  }
  return formats;
}

const ScoreKernel* Find(std::span<const ScoreKernel> kernels, const KvFormat& f) {
  for (const ScoreKernel& k : kernels) {
    if (k.code == f.code && (f.is_float() || k.axis == f.axis)) return &k;
  }
  return nullptr;
}
const MixKernel* Find(std::span<const MixKernel> kernels, const KvFormat& f) {
  for (const MixKernel& k : kernels) {
    if (k.code == f.code) return &k;
  }
  return nullptr;
}

struct alignas(64) Weights {
  float p[kMaxAttendRows][kMaxPageTokens];
};

TEST(KvKernels, ScoresEqualTheScalarOnesAndAreRight) {
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  for (const KvFormat& format : Formats(true)) {
    for (const int head_dim : {64, 128, 80, 32, 72, 8}) {
      for (const int rows : {1, 6, 7, 8}) {
        const int tokens = 128, wanted = rows == 6 ? 101 : tokens;
        const Case c = Make(format, true, tokens, head_dim, 4, rng);
        const KvBlock block(format, true, tokens, head_dim);
        std::vector<std::vector<float>> q(static_cast<size_t>(rows), std::vector<float>(static_cast<size_t>(head_dim)));
        const float* pointers[kMaxAttendRows];
        for (int r = 0; r < rows; ++r) {
          for (float& v : q[static_cast<size_t>(r)]) v = normal(rng);
          pointers[r] = q[static_cast<size_t>(r)].data();
        }
        Weights expected;
        ScoreArgs args;
        args.k = c.bytes.data();
        args.block = &block;
        args.head_dim = head_dim;
        args.tokens = wanted;
        args.n_rows = rows;
        args.q = pointers;
        args.s = expected.p;
        Find(UsableKernels().back()->score, format)->run(args);
        double error = 0, size = 0;
        for (int r = 0; r < rows; ++r) {
          for (int t = 4; t < wanted; ++t) {
            double s = 0;
            for (int i = 0; i < head_dim; ++i)
              s += static_cast<double>(pointers[r][i]) * c.values[static_cast<size_t>(t * head_dim + i)];
            error += (s - expected.p[r][t]) * (s - expected.p[r][t]);
            size += s * s;
          }
        }
        // What the integer query costs: a scale a channel has two terms of it, but for keys with fine rows, a scale a
        // token lets the wild channels set the step of its only one.
        const double most = format.is_float()                                      ? 1e-5
                            : format.fine()                                        ? 0.02
                            : format.axis == KvAxis::kChannel && !format.symmetric ? 0.0005
                                                                                   : 0.25;
        EXPECT_LT(std::sqrt(error / size), most) << Find(UsableKernels().back()->score, format)->name;
        for (const KernelTable* table : UsableKernels()) {
          const ScoreKernel* kernel = Find(table->score, format);
          if (kernel == nullptr && table->fallback != nullptr) continue;  // the row stands there
          ASSERT_NE(kernel, nullptr) << table->name;
          Weights got;
          args.s = got.p;
          kernel->run(args);
          for (int r = 0; r < rows; ++r) {
            ASSERT_EQ(std::memcmp(got.p[r], expected.p[r], sizeof(float) * static_cast<size_t>(wanted)), 0)
                << kernel->name << " head_dim " << head_dim << " rows " << rows;
          }
        }
      }
    }
  }
}

// Scores of keys with fine rows: the score kernel leaves those channels out, and refine puts them in.
TEST(KvKernels, RefinedScoresEqualTheScalarOnesAndAreRight) {
  std::mt19937 rng(14);
  std::normal_distribution<float> normal;
  const KvFormat format = ParseKvFormats("int4", "int4").value().k;
  for (const int head_dim : {64, 128, 24}) {
    for (const int tokens : {128, 256, 40, 8}) {
      for (const int n : {1, 2, 7, 20}) {
        for (const int rows : {1, 7, 8}) {
          const KvBlock block(format, true, tokens, head_dim);
          const KvFine fine(1, n, tokens);
          std::vector<uint16_t> x(static_cast<size_t>(tokens * head_dim));
          std::vector<float> importance(static_cast<size_t>(head_dim));
          for (float& v : importance) v = std::fabs(normal(rng));
          for (size_t i = 0; i < x.size(); ++i) {
            x[i] = FloatToHalf(normal(rng) * importance[i % static_cast<size_t>(head_dim)]);
          }
          std::vector<uint8_t> bytes(block.bytes()), section(fine.bytes());
          block.Encode(x.data(), 0, bytes.data());
          fine.Choose(importance, head_dim, section.data());
          fine.Encode(block, bytes.data(), x.data(), 0, 0, section.data());
          std::vector<float> keys(x.size());
          block.Decode(bytes.data(), keys.data());
          fine.AddTo(block, bytes.data(), 0, section.data(), keys.data());

          std::vector<std::vector<float>> q(static_cast<size_t>(rows),
                                            std::vector<float>(static_cast<size_t>(head_dim)));
          const float* pointers[kMaxAttendRows];
          for (int r = 0; r < rows; ++r) {
            for (float& v : q[static_cast<size_t>(r)]) v = normal(rng);
            pointers[r] = q[static_cast<size_t>(r)].data();
          }
          const int wanted = tokens == 40 ? 21 : tokens;
          const auto run = [&](const KernelTable& table, Weights* out) {
            ScoreArgs score;
            score.k = bytes.data();
            score.block = &block;
            score.fine = fine.head(section.data(), 0);
            score.head_dim = head_dim;
            score.tokens = wanted;
            score.n_rows = rows;
            score.q = pointers;
            score.s = out->p;
            score.ahead = {bytes.data(), bytes.size()};
            FindScore(table, format)->run(score);
            RefineArgs refine;
            refine.k = bytes.data();
            refine.block = &block;
            refine.fine = score.fine;
            refine.tokens = wanted;
            refine.n_rows = rows;
            refine.q = pointers;
            refine.s = out->p;
            table.refine(refine);
          };
          Weights expected{};
          run(*UsableKernels().back(), &expected);
          double error = 0, size = 0;
          for (int r = 0; r < rows; ++r) {
            for (int t = 0; t < wanted; ++t) {
              double s = 0;
              for (int c = 0; c < head_dim; ++c) {
                s += static_cast<double>(pointers[r][c]) * keys[static_cast<size_t>(t * head_dim + c)];
              }
              error += (s - expected.p[r][t]) * (s - expected.p[r][t]);
              size += s * s;
            }
          }
          EXPECT_LT(std::sqrt(error / size), 0.02);  // the query's one int8 term
          for (const KernelTable* table : UsableKernels()) {
            Weights got{};
            run(*table, &got);
            for (int r = 0; r < rows; ++r) {
              ASSERT_EQ(std::memcmp(got.p[r], expected.p[r], sizeof(float) * static_cast<size_t>(wanted)), 0)
                  << table->name << " head_dim " << head_dim << " tokens " << tokens << " rows " << rows;
            }
          }
        }
      }
    }
  }
}

TEST(KvKernels, SoftmaxEqualsTheScalarOne) {
  std::mt19937 rng(12);
  std::normal_distribution<float> normal;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // Rows that see much and little, the whole page of all, and nothing but what is not looked at.
  const int32_t cases[4][8] = {{0, 1, 5, 8, 10, 77, 128, 256},
                               {128, 128, 128, 128, 128, 128, 128, 128},
                               {4, 3, 2, 1, 0, 0, 1, 2},
                               {40, 39, 38, 37, 36, 35, 34, 33}};
  for (const auto& visible : cases) {
    const int most = *std::max_element(visible, visible + 8);
    for (const int tokens : {most, std::max(most, 48), kMaxPageTokens}) {
      for (const int first : {0, 4, 9, 20}) {
        for (const int n_rows : {1, 3, 5, 7, 8}) {
          for (const bool finite : {true, false}) {
            Weights scores;
            for (auto& row : scores.p) {
              for (float& s : row) s = normal(rng) * 20;
            }
            if (!finite) {
              for (auto& row : scores.p) {
                row[rng() % 256] = std::numeric_limits<float>::quiet_NaN();
                row[rng() % 256] = kInf;
                row[rng() % 256] = -kInf;
              }
            }
            const auto run = [&](const KernelTable& table, Weights* w, float* m, float* l) {
              *w = scores;
              SoftmaxArgs args;
              args.first = first;
              args.tokens = tokens;
              args.n_rows = n_rows;
              args.visible = visible;
              args.s = w->p;
              args.m = m;
              args.l = l;
              table.softmax(args);
            };
            Weights expected;
            float m[8], l[8];
            run(*UsableKernels().back(), &expected, m, l);
            for (int r = 0; r < n_rows && finite; ++r) {
              double sum = 0;
              for (int t = first; t < visible[r]; ++t) sum += std::exp2(static_cast<double>(scores.p[r][t]) - m[r]);
              EXPECT_NEAR(l[r], sum, 1e-5 * sum);
              for (int t = 0; t < tokens; ++t) {
                if (t < first || t >= visible[r]) {
                  ASSERT_EQ(expected.p[r][t], 0.0f);
                }
              }
            }
            for (const KernelTable* table : UsableKernels()) {
              Weights got;
              float gm[8], gl[8];
              run(*table, &got, gm, gl);
              for (int r = 0; r < n_rows; ++r) {
                for (int t = 0; t < tokens; ++t) {
                  ASSERT_TRUE(testing::SameFloat(got.p[r][t], expected.p[r][t]))
                      << table->name << " row " << r << " token " << t << " of " << visible[r] << " from " << first;
                }
                ASSERT_TRUE(testing::SameFloat(gm[r], m[r])) << table->name << " row " << r;
                ASSERT_TRUE(testing::SameFloat(gl[r], l[r])) << table->name << " row " << r;
              }
            }
          }
        }
      }
    }
  }
}

TEST(KvKernels, MixesEqualTheScalarOnesAndAreRight) {
  std::mt19937 rng(13);
  std::normal_distribution<float> normal;
  for (const KvFormat& format : Formats(false)) {
    for (const int head_dim : {64, 128, 80, 32, 72, 8}) {
      for (const int rows : {1, 6, 7, 8}) {
        const int tokens = 128;
        const Case c = Make(format, false, tokens, head_dim, 0, rng);
        const KvBlock block(format, false, tokens, head_dim);
        Weights weights{};
        int32_t visible[kMaxAttendRows];
        for (int r = 0; r < rows; ++r) {
          visible[r] = r % 3 == 0 ? tokens : 100 - r;
          for (int t = 0; t < visible[r]; ++t) weights.p[r][t] = std::exp2(normal(rng) * 2 - 4);
        }
        std::vector<float> expected(static_cast<size_t>(rows * head_dim));
        float* pointers[kMaxAttendRows];
        const auto point = [&](std::vector<float>& to) {
          for (int r = 0; r < rows; ++r) pointers[r] = to.data() + r * head_dim;
        };
        point(expected);
        MixArgs args;
        args.v = c.bytes.data();
        args.block = &block;
        args.head_dim = head_dim;
        args.n_rows = rows;
        args.visible = visible;
        args.p = weights.p;
        args.o = pointers;
        Find(UsableKernels().back()->mix, format)->run(args);
        double error = 0, size = 0;
        for (int r = 0; r < rows; ++r) {
          for (int d = 0; d < head_dim; ++d) {
            double o = 0;
            for (int t = 0; t < tokens; ++t)
              o += static_cast<double>(weights.p[r][t]) * c.values[static_cast<size_t>(t * head_dim + d)];
            error += (o - pointers[r][d]) * (o - pointers[r][d]);
            size += o * o;
          }
        }
        EXPECT_LT(std::sqrt(error / size), format.is_float() ? 1e-5 : 0.06)
            << Find(UsableKernels().back()->mix, format)->name;
        for (const KernelTable* table : UsableKernels()) {
          const MixKernel* kernel = Find(table->mix, format);
          if (kernel == nullptr && table->fallback != nullptr) continue;  // the row stands there
          ASSERT_NE(kernel, nullptr) << table->name;
          std::vector<float> got(expected.size());
          point(got);
          kernel->run(args);
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
              << kernel->name << " head_dim " << head_dim << " rows " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvart
