// Attention over pages: the bits of the scalar table for every shape, what lies beyond the visible tokens never leaks,
// and pages joined one by one are the softmax over all tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernel_testing.h"

namespace kvart {
namespace {

using testing::Random;
using testing::Same;
using testing::SameFloat;
using testing::Scalar;
using testing::Uniform;
using testing::Uniforms;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kPageTypes[] = {DType::kF16, DType::kF32};

// A page's keys or values in the type of the page; what is not written is NaN.
struct Stored {
  DType type;
  std::vector<uint8_t> bytes;

  Stored(DType t, int64_t n) : type(t), bytes(static_cast<size_t>(n) * Size(t), 0xff) {}
  static size_t Size(DType t) { return t == DType::kF16 ? 2 : 4; }
  void Set(int64_t index, float value) {
    if (type == DType::kF16) {
      const uint16_t half = FloatToHalf(value);
      std::memcpy(&bytes[static_cast<size_t>(index) * 2], &half, 2);
    } else {
      std::memcpy(&bytes[static_cast<size_t>(index) * 4], &value, 4);
    }
  }
  float Get(int64_t index) const {
    if (type == DType::kF16) {
      uint16_t half = 0;
      std::memcpy(&half, &bytes[static_cast<size_t>(index) * 2], 2);
      return HalfToFloat(half);
    }
    float value = 0;
    std::memcpy(&value, &bytes[static_cast<size_t>(index) * 4], 4);
    return value;
  }
};

struct Shape {
  int head_dim, page, tokens, group;
};

struct Share {
  std::vector<float> m, l, o;
};

// One page and the queries that look at it.
struct Page {
  Shape shape;
  Stored k, v;
  std::vector<float> q;  // (tokens, stride), the last 5 floats of a token are not queries
  int64_t q_stride;
  std::vector<int32_t> visible;

  Page(Random& random, const Shape& s, DType k_type, DType v_type, std::vector<int32_t> seen, float spread = 1)
      : shape(s), k(k_type, s.page * s.head_dim), v(v_type, s.page * s.head_dim), visible(std::move(seen)) {
    const int most = *std::max_element(visible.begin(), visible.end());
    for (int t = 0; t < most; ++t) {
      for (int c = 0; c < s.head_dim; ++c) {
        k.Set((t / 8 * s.head_dim + c) * 8 + t % 8, Uniform(random, -spread, spread));
        v.Set(t * s.head_dim + c, Uniform(random, -2, 2));
      }
    }
    q_stride = s.group * s.head_dim + 5;
    q = Uniforms(random, s.tokens * q_stride);
    for (float& value : q) value *= 1.44269504f / std::sqrt(static_cast<float>(s.head_dim)) * 3;
  }
  float Key(int t, int c) const { return k.Get((t / 8 * shape.head_dim + c) * 8 + t % 8); }
  float Value(int t, int d) const { return v.Get(t * shape.head_dim + d); }

  // Tokens first … first + count - 1.
  Share Run(const AttendPageKernel& kernel, int first, int count) const {
    const size_t rows = static_cast<size_t>(count * shape.group);
    Share share{std::vector<float>(rows, NAN), std::vector<float>(rows, NAN),
                std::vector<float>(rows * static_cast<size_t>(shape.head_dim), NAN)};
    AttendPageArgs args;
    args.k = k.bytes.data();
    args.v = v.bytes.data();
    args.head_dim = shape.head_dim;
    args.n_tokens = count;
    args.group = shape.group;
    args.q = q.data() + first * q_stride;
    args.q_stride = q_stride;
    args.visible = visible.data() + first;
    args.m = share.m.data();
    args.l = share.l.data();
    args.o = share.o.data();
    kernel.run(args);
    return share;
  }
  Share Run(const AttendPageKernel& kernel) const { return Run(kernel, 0, shape.tokens); }
};

std::vector<float> Rows(const std::vector<float>& all, size_t first, size_t count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

class AttentionTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  static void ExpectAsScalar(const Page& page) {
    const AttendPageKernel* tested = FindAttendPage(*GetParam(), page.k.type, page.v.type);
    const AttendPageKernel* truth = FindAttendPage(Scalar(), page.k.type, page.v.type);
    ASSERT_TRUE(tested != nullptr && truth != nullptr);
    ASSERT_TRUE(tested->k_type == page.k.type && tested->v_type == page.v.type);
    const Share got = page.Run(*tested), want = page.Run(*truth);
    EXPECT_TRUE(Same(got.m, want.m)) << tested->name;
    EXPECT_TRUE(Same(got.l, want.l)) << tested->name;
    EXPECT_TRUE(Same(got.o, want.o)) << tested->name;
  }
};
KVART_TEST_ALL_TABLES(AttentionTest);

TEST_P(AttentionTest, EveryShape) {
  Random random(1);
  for (const DType k_type : kPageTypes) {
    for (const DType v_type : kPageTypes) {
      for (const int head_dim : {8, 32, 64, 80, 128}) {
        for (const int group : {1, 2, 6, 7, 8}) {
          for (const int tokens : {1, 3}) {
            const Shape shape{head_dim, 32, tokens, group};
            std::vector<int32_t> visible;
            for (int i = 0; i < tokens; ++i) visible.push_back(static_cast<int32_t>(random() % 33));
            SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << " group " << group << " tokens " << tokens);
            ExpectAsScalar(Page(random, shape, k_type, v_type, visible));
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, EveryVisibleCount) {
  Random random(2);
  for (int32_t visible = 0; visible <= 40; ++visible) {
    SCOPED_TRACE(visible);
    ExpectAsScalar(Page(random, {64, 40, 1, 7}, DType::kF16, DType::kF16, {visible}));
    ExpectAsScalar(Page(random, {64, 40, 3, 2}, DType::kF32, DType::kF32, {visible, 40, 0}));
  }
  for (const int32_t visible : {1, 127, 128, 255, 256}) {
    ExpectAsScalar(Page(random, {128, kMaxPageTokens, 2, 6}, DType::kF16, DType::kF16, {visible, 256}));
  }
}

// A run of causal prefill: every token sees one more than the one before, until the page is full.
TEST_P(AttentionTest, CausalPrefill) {
  Random random(3);
  std::vector<int32_t> visible;
  for (int i = 0; i < 37; ++i) visible.push_back(std::clamp(i - 2, 0, 32));
  ExpectAsScalar(Page(random, {64, 32, 37, 7}, DType::kF16, DType::kF16, visible));
  ExpectAsScalar(Page(random, {64, 32, 37, 1}, DType::kF32, DType::kF16, visible));
}

TEST_P(AttentionTest, NothingBeyondVisibleLeaks) {
  Random random(4);
  for (const DType type : kPageTypes) {
    const Page page(random, {64, 64, 1, 7}, type, type, {13});  // tokens 13 and on are NaN
    const Share share = page.Run(*FindAttendPage(*GetParam(), type, type));
    for (const auto* values : {&share.m, &share.l, &share.o}) {
      for (const float value : *values) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST_P(AttentionTest, NothingVisible) {
  Random random(5);
  Page page(random, {32, 16, 2, 3}, DType::kF16, DType::kF16, {5, 0});
  const Share share = page.Run(*FindAttendPage(*GetParam(), DType::kF16, DType::kF16));
  for (size_t row = 3; row < 6; ++row) {
    EXPECT_EQ(share.m[row], -kInf);
    EXPECT_TRUE(SameFloat(share.l[row], 0.0f));
    for (size_t d = 0; d < 32; ++d) EXPECT_TRUE(SameFloat(share.o[row * 32 + d], 0.0f));
  }
}

TEST_P(AttentionTest, TokensDoNotDependOnTheirNumber) {
  Random random(6);
  const Page page(random, {64, 32, 9, 7}, DType::kF16, DType::kF16, {32, 3, 17, 0, 8, 9, 31, 32, 1});
  const AttendPageKernel& kernel = *FindAttendPage(*GetParam(), DType::kF16, DType::kF16);
  const Share together = page.Run(kernel);
  for (int i = 0; i < 9; ++i) {
    const Share alone = page.Run(kernel, i, 1);
    const size_t row = static_cast<size_t>(i) * 7;
    EXPECT_TRUE(Same(alone.m, Rows(together.m, row, 7)));
    EXPECT_TRUE(Same(alone.l, Rows(together.l, row, 7)));
    EXPECT_TRUE(Same(alone.o, Rows(together.o, row * 64, 7 * 64)));
  }
}

TEST_P(AttentionTest, WideScores) {  // one token outweighs all others, whose powers are cut at 2^-126
  Random random(7);
  ExpectAsScalar(Page(random, {64, 32, 2, 4}, DType::kF16, DType::kF16, {32, 29}, 400.0f));
  ExpectAsScalar(Page(random, {64, 32, 2, 4}, DType::kF32, DType::kF32, {32, 29}, 0.0f));
}

// Keys that overflow: minus infinity is a score like any other, NaN is never the greatest one.
TEST_P(AttentionTest, BrokenKeys) {
  Random random(10);
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const int t : {0, 5, 8, 19, 20}) {
      Page page(random, {32, 32, 2, 3}, DType::kF16, DType::kF16, {21, 20});
      for (int c = 0; c < 32; ++c) page.k.Set((t / 8 * 32 + c) * 8 + t % 8, c == 3 ? bad : 0.0f);
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
TEST_P(AttentionTest, PagesMakeASoftmax) {
  Random random(9);
  constexpr int kHeadDim = 64, kPage = 32, kGroup = 7, kPages = 4, kLast = 21;
  for (const DType type : kPageTypes) {
    std::vector<Page> pages;
    for (int p = 0; p < kPages; ++p) {
      pages.emplace_back(random, Shape{kHeadDim, kPage, 1, kGroup}, type, type,
                         std::vector<int32_t>{p + 1 < kPages ? kPage : kLast}, 4.0f);
      pages.back().q = pages.front().q;
    }
    Share running{std::vector<float>(kGroup, -kInf), std::vector<float>(kGroup, 0),
                  std::vector<float>(kGroup * kHeadDim, 0)};
    for (const Page& page : pages) {
      const Share share = page.Run(*FindAttendPage(*GetParam(), type, type));
      AttendMergeArgs args;
      args.n_rows = kGroup;
      args.head_dim = kHeadDim;
      args.m = share.m.data();
      args.l = share.l.data();
      args.o = share.o.data();
      args.run_m = running.m.data();
      args.run_l = running.l.data();
      args.run_o = running.o.data();
      GetParam()->attend_merge(args);
    }
    for (int g = 0; g < kGroup; ++g) {
      std::vector<double> scores, out(kHeadDim, 0.0);
      for (const Page& page : pages) {
        for (int t = 0; t < page.visible[0]; ++t) {
          double s = 0;
          for (int c = 0; c < kHeadDim; ++c) {
            s += static_cast<double>(page.q[static_cast<size_t>(g * kHeadDim + c)]) * page.Key(t, c);
          }
          scores.push_back(s);
        }
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& s : scores) sum += s = std::exp2(s - top);
      for (size_t i = 0; i < scores.size(); ++i) {
        const Page& page = pages[i / kPage];
        for (int d = 0; d < kHeadDim; ++d) {
          out[static_cast<size_t>(d)] += scores[i] / sum * page.Value(static_cast<int>(i % kPage), d);
        }
      }
      for (size_t d = 0; d < kHeadDim; ++d) {
        const size_t row = static_cast<size_t>(g);
        EXPECT_NEAR(running.o[row * kHeadDim + d] / running.l[row], out[d], 2e-5) << "head " << g << " channel " << d;
      }
    }
  }
}

}  // namespace
}  // namespace kvart
