// Attention over pages: the bits of the scalar table for every shape, what lies beyond the visible tokens never leaks,
// and pages joined one by one are the softmax over all tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>

#include "kernels/attend.h"
#include "kernels/kernel_testing.h"

namespace kvart {
namespace {

using testing::Random;
using testing::Same;
using testing::SameFloat;
using testing::Scalar;
using testing::Uniforms;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr const char* kFloats[] = {"f16", "f32"};
constexpr const char* kIntegers[] = {"int8",           "int8-g32",        "int4",
                                     "int4-sym",       "int4-g32",        "int4-token",
                                     "int4-token-g64", "int4-token-g128", "int4-knorm"};

// A page's keys or values: floats as they are, integers encoded. Floats that are not set are NaN.
struct Stored {
  KvBlock block;
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;  // of integers: what the bytes stand for

  Stored(const KvFormat& format, bool keys, int tokens, int head_dim)
      : block(format, keys, tokens, head_dim), bytes(block.bytes(), 0xff) {}
  bool is_float() const { return block.format().is_float(); }
  // rows: (at least n, head_dim). Floats take the first n tokens, integers all of the page.
  void Fill(const std::vector<float>& rows, int n, int first) {
    if (!is_float()) {
      std::vector<uint16_t> halves;
      for (const float value : rows) halves.push_back(FloatToHalf(value));
      block.Encode(halves.data(), first, bytes.data());
      decoded.resize(rows.size());
      block.Decode(bytes.data(), decoded.data());
      return;
    }
    for (int t = 0; t < n; ++t) {
      for (int c = 0; c < block.head_dim(); ++c) Set(t, c, rows[static_cast<size_t>(t * block.head_dim() + c)]);
    }
  }
  void Set(int t, int c, float value) {
    const uint16_t half = FloatToHalf(value);
    if (block.format().code == KvCode::kF16)
      std::memcpy(&bytes[block.FloatAt(t, c) * 2], &half, 2);
    else
      std::memcpy(&bytes[block.FloatAt(t, c) * 4], &value, 4);
  }
  float Get(int t, int c) const {
    if (!is_float()) return decoded[static_cast<size_t>(t * block.head_dim() + c)];
    uint16_t half = 0;
    float value = 0;
    if (block.format().code == KvCode::kF16) {
      std::memcpy(&half, &bytes[block.FloatAt(t, c) * 2], 2);
      return HalfToFloat(half);
    }
    std::memcpy(&value, &bytes[block.FloatAt(t, c) * 4], 4);
    return value;
  }
};

struct Shape {
  int head_dim, page, tokens, group;
  int first = 0;
};

struct Share {
  std::vector<float> m, l, o;
};

PageKernels KernelsOf(const KernelTable& table, const Stored& k, const Stored& v) {
  return {FindScore(table, k.block.format()), FindMix(table, v.block.format()), k.is_float() ? nullptr : &k.block,
          v.is_float() ? nullptr : &v.block};
}

// One page and the queries that look at it.
struct Page {
  Shape shape;
  KvFormats formats;
  Stored k, v;
  std::vector<float> q;  // (tokens, stride), the last 5 floats of a token are not queries
  int64_t q_stride;
  std::vector<int32_t> visible;

  Page(Random& random, const Shape& s, const char* k_name, const char* v_name, std::vector<int32_t> seen,
       float spread = 1)
      : shape(s),
        formats(ParseKvFormats(k_name, v_name).value()),
        k(formats.k, true, s.page, s.head_dim),
        v(formats.v, false, s.page, s.head_dim),
        visible(std::move(seen)) {
    const int most = *std::max_element(visible.begin(), visible.end());
    k.Fill(Uniforms(random, s.page * s.head_dim, -spread, spread), most, s.first);
    v.Fill(Uniforms(random, s.page * s.head_dim, -2, 2), most, s.first);
    q_stride = s.group * s.head_dim + 5;
    q = Uniforms(random, s.tokens * q_stride);
    for (float& value : q) value *= 1.44269504f / std::sqrt(static_cast<float>(s.head_dim)) * 3;
  }

  // Tokens from … from + count - 1.
  Share Run(const KernelTable& table, int from, int count) const {
    const size_t rows = static_cast<size_t>(count * shape.group);
    Share share{std::vector<float>(rows, NAN), std::vector<float>(rows, NAN),
                std::vector<float>(rows * static_cast<size_t>(shape.head_dim), NAN)};
    AttendPageArgs args;
    args.k = k.bytes.data();
    args.v = v.bytes.data();
    args.head_dim = shape.head_dim;
    args.first = shape.first;
    args.n_tokens = count;
    args.group = shape.group;
    args.q = q.data() + from * q_stride;
    args.q_stride = q_stride;
    args.visible = visible.data() + from;
    args.m = share.m.data();
    args.l = share.l.data();
    args.o = share.o.data();
    AttendPage(table, KernelsOf(table, k, v), args);
    return share;
  }
  Share Run(const KernelTable& table) const { return Run(table, 0, shape.tokens); }
};

std::vector<float> Rows(const std::vector<float>& all, size_t first, size_t count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

class AttentionTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  static void ExpectAsScalar(const Page& page) {
    const Share got = page.Run(*GetParam()), want = page.Run(Scalar());
    EXPECT_TRUE(Same(got.m, want.m));
    EXPECT_TRUE(Same(got.l, want.l));
    EXPECT_TRUE(Same(got.o, want.o));
  }
  static void ExpectEveryShape(Random& random, const char* k_name, const char* v_name) {
    for (const int head_dim : {8, 32, 64, 72, 80, 128}) {
      for (const int group : {1, 2, 6, 7, 8}) {
        for (const int tokens : {1, 3}) {
          const Shape shape{head_dim, group == 2 ? 40 : 32, tokens, group};
          std::vector<int32_t> visible;
          for (int i = 0; i < tokens; ++i) visible.push_back(static_cast<int32_t>(random() % 33));
          SCOPED_TRACE(::testing::Message() << k_name << " " << v_name << " head_dim " << head_dim << " group " << group
                                            << " tokens " << tokens);
          ExpectAsScalar(Page(random, shape, k_name, v_name, visible));
        }
      }
    }
  }
};
KVART_TEST_ALL_TABLES(AttentionTest);

TEST_P(AttentionTest, HasAKernelOfItsOwnForEveryFormat) {
  const auto own = [](const char* name) {  // its own, or that of the table it falls back to
    for (const KernelTable* t = GetParam(); t != nullptr; t = t->fallback) {
      if (std::string_view(name).ends_with(t->name)) return true;
    }
    return false;
  };
  for (const auto& names : {std::span<const char* const>(kFloats), std::span<const char* const>(kIntegers)}) {
    for (const char* name : names) {
      const KvFormats formats = ParseKvFormats(name, name).value();
      const ScoreKernel* score = FindScore(*GetParam(), formats.k);
      const MixKernel* mix = FindMix(*GetParam(), formats.v);
      ASSERT_TRUE(score != nullptr && mix != nullptr) << name;
      EXPECT_TRUE(own(score->name) && own(mix->name)) << score->name << " " << mix->name;
      EXPECT_TRUE(score->code == formats.k.code && mix->code == formats.v.code) << name;
      EXPECT_TRUE(formats.k.is_float() || score->axis == formats.k.axis) << name;
    }
  }
}

TEST_P(AttentionTest, EveryShape) {
  Random random(1);
  for (const char* k_name : kFloats) {
    for (const char* v_name : kFloats) ExpectEveryShape(random, k_name, v_name);
  }
}

TEST_P(AttentionTest, EveryShapeOfIntegers) {
  Random random(11);
  for (const char* name : kIntegers) ExpectEveryShape(random, name, name);
  ExpectEveryShape(random, "int8", "int4");
  ExpectEveryShape(random, "int4", "f16");
}

TEST_P(AttentionTest, EveryVisibleCount) {
  Random random(2);
  for (int32_t visible = 0; visible <= 40; ++visible) {
    SCOPED_TRACE(visible);
    ExpectAsScalar(Page(random, {64, 40, 1, 7}, "f16", "f16", {visible}));
    ExpectAsScalar(Page(random, {64, 40, 3, 2}, "f32", "f32", {visible, 40, 0}));
    for (const char* name : kIntegers) ExpectAsScalar(Page(random, {64, 40, 2, 3}, name, name, {visible, 7}));
  }
  for (const int32_t visible : {1, 127, 128, 255, 256}) {
    ExpectAsScalar(Page(random, {128, kMaxPageTokens, 2, 6}, "f16", "f16", {visible, 256}));
    for (const char* name : kIntegers)
      ExpectAsScalar(Page(random, {64, kMaxPageTokens, 2, 3}, name, name, {visible, 256}));
  }
}

// Tokens before the first one are not looked at, whatever their keys hold.
TEST_P(AttentionTest, FirstToken) {
  Random random(12);
  for (const int first : {1, 4, 8, 13, 31, 32}) {
    for (const auto& names : {std::span<const char* const>(kFloats), std::span<const char* const>(kIntegers)}) {
      for (const char* name : names) {
        SCOPED_TRACE(::testing::Message() << name << " first " << first);
        Page page(random, {32, 32, 3, 3, first}, name, name, {32, first, first + 1 > 32 ? 32 : first + 1});
        const Share clean = page.Run(*GetParam());
        ExpectAsScalar(page);
        for (size_t row = 3; row < 6; ++row) {
          EXPECT_EQ(clean.m[row], -kInf);
          EXPECT_TRUE(SameFloat(clean.l[row], 0.0f));
        }
        if (first < 32) {
          for (size_t row = 6; row < 9; ++row)
            EXPECT_TRUE(SameFloat(clean.l[row], 1.0f)) << "one token is all there is";
        }
        if (!page.k.is_float()) continue;
        for (int t = 0; t < first; ++t) {
          for (int c = 0; c < 32; ++c) page.k.Set(t, c, c % 2 == 0 ? NAN : kInf);
        }
        const Share dirty = page.Run(*GetParam());
        EXPECT_TRUE(Same(dirty.m, clean.m) && Same(dirty.l, clean.l) && Same(dirty.o, clean.o));
      }
    }
  }
}

// A run of causal prefill: every token sees one more than the one before, until the page is full.
TEST_P(AttentionTest, CausalPrefill) {
  Random random(3);
  std::vector<int32_t> visible;
  for (int i = 0; i < 37; ++i) visible.push_back(std::clamp(i - 2, 0, 32));
  ExpectAsScalar(Page(random, {64, 32, 37, 7}, "f16", "f16", visible));
  ExpectAsScalar(Page(random, {64, 32, 37, 1}, "f32", "f16", visible));
  ExpectAsScalar(Page(random, {64, 32, 37, 7}, "int4", "int4", visible));
}

TEST_P(AttentionTest, NothingBeyondVisibleLeaks) {
  Random random(4);
  for (const char* type : kFloats) {
    const Page page(random, {64, 64, 1, 7}, type, type, {13});  // tokens 13 and on are NaN
    const Share share = page.Run(*GetParam());
    for (const auto* values : {&share.m, &share.l, &share.o}) {
      for (const float value : *values) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST_P(AttentionTest, NothingVisible) {
  Random random(5);
  Page page(random, {32, 16, 2, 3}, "f16", "f16", {5, 0});
  const Share share = page.Run(*GetParam());
  for (size_t row = 3; row < 6; ++row) {
    EXPECT_EQ(share.m[row], -kInf);
    EXPECT_TRUE(SameFloat(share.l[row], 0.0f));
    for (size_t d = 0; d < 32; ++d) EXPECT_TRUE(SameFloat(share.o[row * 32 + d], 0.0f));
  }
}

TEST_P(AttentionTest, TokensDoNotDependOnTheirNumber) {
  Random random(6);
  for (const char* name : {"f16", "f32", "int8", "int4", "int4-token"}) {
    const Page page(random, {64, 32, 9, 7}, name, name, {32, 3, 17, 0, 8, 9, 31, 32, 1});
    const Share together = page.Run(*GetParam());
    for (int i = 0; i < 9; ++i) {
      const Share alone = page.Run(*GetParam(), i, 1);
      const size_t row = static_cast<size_t>(i) * 7;
      EXPECT_TRUE(Same(alone.m, Rows(together.m, row, 7))) << name;
      EXPECT_TRUE(Same(alone.l, Rows(together.l, row, 7))) << name;
      EXPECT_TRUE(Same(alone.o, Rows(together.o, row * 64, 7 * 64))) << name;
    }
  }
}

TEST_P(AttentionTest, WideScores) {  // one token outweighs all others, whose powers are cut at 2^-126
  Random random(7);
  ExpectAsScalar(Page(random, {64, 32, 2, 4}, "f16", "f16", {32, 29}, 400.0f));
  ExpectAsScalar(Page(random, {64, 32, 2, 4}, "f32", "f32", {32, 29}, 0.0f));
}

// Keys that overflow: minus infinity is a score like any other, NaN is never the greatest one.
TEST_P(AttentionTest, BrokenKeys) {
  Random random(10);
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const int t : {0, 5, 8, 19, 20}) {
      Page page(random, {32, 32, 2, 3}, "f16", "f16", {21, 20});
      for (int c = 0; c < 32; ++c) page.k.Set(t, c, c == 3 ? bad : 0.0f);
      SCOPED_TRACE(::testing::Message() << bad << " at token " << t);
      ExpectAsScalar(page);
    }
  }
}

TEST_P(AttentionTest, MergeAsScalar) {
  Random random(8);
  for (const int head_dim : {8, 64, 80, 128}) {
    constexpr size_t kRows = 9;
    const size_t d = static_cast<size_t>(head_dim);
    std::vector<float> m = Uniforms(random, kRows, -2, 2), l = Uniforms(random, kRows, 1, 100);
    std::vector<float> o = Uniforms(random, static_cast<int64_t>(kRows * d), -50, 50);
    std::vector<float> run_m = Uniforms(random, kRows, -2, 2), run_l = Uniforms(random, kRows, 1, 100);
    std::vector<float> run_o = Uniforms(random, static_cast<int64_t>(kRows * d), -50, 50);
    run_m[1] = m[1];
    m[2] = -kInf;
    m[3] = run_m[3] - 500;
    m[4] = run_m[4] + 500;
    for (const size_t empty : {5, 6}) {
      run_m[empty] = -kInf;
      run_l[empty] = 0;
      std::fill_n(&run_o[empty * d], d, 0.0f);
    }
    m[6] = -kInf;
    for (size_t c = 0; c < d; ++c) o[2 * d + c] = NAN;  // belongs to m = -inf: not to be touched

    const auto merge = [&](const KernelTable& table) {
      Share running{run_m, run_l, run_o};
      AttendMergeArgs args;
      args.n_rows = kRows;
      args.head_dim = head_dim;
      args.m = m.data();
      args.l = l.data();
      args.o = o.data();
      args.run_m = running.m.data();
      args.run_l = running.l.data();
      args.run_o = running.o.data();
      table.attend_merge(args);
      return running;
    };
    const Share got = merge(*GetParam()), want = merge(Scalar());
    EXPECT_TRUE(Same(got.m, want.m));
    EXPECT_TRUE(Same(got.l, want.l));
    EXPECT_TRUE(Same(got.o, want.o));
    EXPECT_TRUE(Same(Rows(got.o, 2 * d, d), Rows(run_o, 2 * d, d)));
    EXPECT_TRUE(Same(Rows(got.o, 5 * d, d), Rows(o, 5 * d, d))) << "the first share is taken as it is";
  }
}

// Several pages, joined in order, against softmax over all tokens in double precision.
void ExpectSoftmax(const KernelTable& table, const char* name, int first, double tolerance) {
  Random random(9);
  constexpr int kHeadDim = 64, kPage = 32, kGroup = 7, kPages = 4, kLast = 21;
  std::vector<Page> pages;
  for (int p = 0; p < kPages; ++p) {
    pages.emplace_back(random, Shape{kHeadDim, kPage, 1, kGroup, p == 0 ? first : 0}, name, name,
                       std::vector<int32_t>{p + 1 < kPages ? kPage : kLast}, 4.0f);
    pages.back().q = pages.front().q;
  }
  Share running{std::vector<float>(kGroup, -kInf), std::vector<float>(kGroup, 0),
                std::vector<float>(kGroup * kHeadDim, 0)};
  for (const Page& page : pages) {
    const Share share = page.Run(table);
    AttendMergeArgs args;
    args.n_rows = kGroup;
    args.head_dim = kHeadDim;
    args.m = share.m.data();
    args.l = share.l.data();
    args.o = share.o.data();
    args.run_m = running.m.data();
    args.run_l = running.l.data();
    args.run_o = running.o.data();
    table.attend_merge(args);
  }
  for (int g = 0; g < kGroup; ++g) {
    std::vector<double> scores, out(kHeadDim, 0.0);
    for (const Page& page : pages) {
      for (int t = 0; t < page.visible[0]; ++t) {
        double s = 0;
        for (int c = 0; c < kHeadDim; ++c) {
          s += static_cast<double>(page.q[static_cast<size_t>(g * kHeadDim + c)]) * page.k.Get(t, c);
        }
        scores.push_back(t < page.shape.first ? -kInf : s);
      }
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& s : scores) sum += s = std::exp2(s - top);
    for (size_t i = 0; i < scores.size(); ++i) {
      const Page& page = pages[i / kPage];
      for (int d = 0; d < kHeadDim; ++d) {
        out[static_cast<size_t>(d)] += scores[i] / sum * page.v.Get(static_cast<int>(i % kPage), d);
      }
    }
    for (size_t d = 0; d < kHeadDim; ++d) {
      const size_t row = static_cast<size_t>(g);
      EXPECT_NEAR(running.o[row * kHeadDim + d] / running.l[row], out[d], tolerance)
          << name << " head " << g << " channel " << d;
    }
  }
}

TEST_P(AttentionTest, PagesMakeASoftmax) {
  for (const int first : {0, 4}) {
    for (const char* name : kFloats) ExpectSoftmax(*GetParam(), name, first, 2e-5);
    // Queries and weights as int8 cost a little.
    for (const char* name : kIntegers) ExpectSoftmax(*GetParam(), name, first, 0.06);
  }
}

}  // namespace
}  // namespace kvart
