// Fine rows of a page's keys: which channels get them, their bytes, what they save, and tables that are not tables.
#include "quant/kv_fine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "quant/half.h"

namespace kvart {
namespace {

constexpr int kHeads = 6, kDim = 16, kTokens = 40;  // not a multiple of 16

KvBlock Keys(int tokens = kTokens) {
  return {ParseKvFormats("int4", "int4").value().k, true, tokens, kDim};
}

std::vector<uint16_t> Rows(std::mt19937& random, int tokens = kTokens) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(static_cast<size_t>(tokens * kDim));
  for (uint16_t& v : x) v = FloatToHalf(normal(random));
  return x;
}

TEST(KvFine, RowsGoToTheHighestAndTheFirstOfEquals) {
  std::mt19937 random(1);
  for (const int rows : {1, 7, kHeads * kDim / 2, kHeads * kDim}) {
    const KvFine fine(kHeads, rows, kTokens);
    std::vector<float> importance(kHeads * kDim);
    for (float& v : importance) v = static_cast<float>(random() % 10);
    std::vector<uint8_t> section(fine.bytes());
    fine.Choose(importance, kDim, section.data());
    ASSERT_TRUE(fine.Valid(section, kDim));
    std::set<std::pair<float, int>> best;  // the plain way: sorted by importance, then place
    for (int i = 0; i < kHeads * kDim; ++i) best.insert({-importance[static_cast<size_t>(i)], i});
    std::set<int> wanted, found;
    for (auto it = best.begin(); wanted.size() < static_cast<size_t>(rows); ++it) wanted.insert(it->second);
    for (int head = 0; head < kHeads; ++head) {
      const KvFine::Head at = fine.head(section.data(), head);
      for (int i = 0; i < at.n; ++i) found.insert(head * kDim + at.channel(i));
    }
    EXPECT_EQ(found, wanted) << rows;
  }
}

TEST(KvFine, ASecondCodeTakesTheErrorToASixteenth) {
  std::mt19937 random(2);
  const KvBlock keys = Keys();
  const KvFine fine(1, 3, kTokens);
  for (const int first : {0, 4}) {
    const std::vector<uint16_t> x = Rows(random);
    std::vector<uint8_t> block(keys.bytes()), section(fine.bytes());
    keys.Encode(x.data(), first, block.data());
    std::vector<float> importance(kDim);
    for (const size_t c : {2, 3, 15}) importance[c] = 1;
    fine.Choose(importance, kDim, section.data());
    fine.Encode(keys, block.data(), x.data(), first, 0, section.data());
    std::vector<float> coarse(x.size()), refined;
    keys.Decode(block.data(), coarse.data());
    refined = coarse;
    fine.AddTo(keys, block.data(), 0, section.data(), refined.data());
    for (int c = 0; c < kDim; ++c) {
      const float scale =
          HalfToFloat(static_cast<uint16_t>(block[keys.params() + static_cast<size_t>(2 * c)] |
                                            block[keys.params() + static_cast<size_t>(2 * c) + 1] << 8));
      for (int t = first; t < kTokens; ++t) {
        const size_t i = static_cast<size_t>(t * kDim + c);
        if (importance[i % kDim] == 0) {
          EXPECT_EQ(refined[i], coarse[i]);
        } else {
          EXPECT_LE(std::fabs(refined[i] - HalfToFloat(x[i])), scale / 32 * 1.001f) << t << ' ' << c;
        }
      }
    }
  }
}

TEST(KvFine, WildNumbersDoNoHarm) {
  const KvBlock keys = Keys(16);
  const KvFine fine(1, kDim, 16);
  const std::vector<float> importance(kDim, 1.0f);
  for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00, 0x7bff, 0x0001, 0x0000}) {  // ±inf, NaN, largest, smallest, 0
    std::mt19937 random(3);
    std::vector<uint16_t> x = Rows(random, 16);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = bad;
    std::vector<uint8_t> block(keys.bytes()), section(fine.bytes()), again(fine.bytes());
    keys.Encode(x.data(), 0, block.data());
    for (auto* to : {&section, &again}) {
      fine.Choose(importance, kDim, to->data());
      fine.Encode(keys, block.data(), x.data(), 0, 0, to->data());
    }
    EXPECT_TRUE(fine.Valid(section, kDim));
    EXPECT_EQ(section, again);
  }
}

TEST(KvFine, TablesThatAreNotTablesAreRefused) {
  const KvFine fine(kHeads, 12, kTokens);
  std::vector<float> importance(kHeads * kDim);
  for (size_t i = 0; i < importance.size(); ++i) importance[i] = static_cast<float>(i * 37 % 96);
  std::vector<uint8_t> good(fine.bytes());
  fine.Choose(importance, kDim, good.data());
  ASSERT_TRUE(fine.Valid(good, kDim));
  EXPECT_FALSE(fine.Valid(std::span(good).first(good.size() - 1), kDim));
  EXPECT_FALSE(fine.Valid(good, 4));  // channels beyond the head
  // Whatever single byte of the table changes: refused, or every row still lies within.
  for (size_t at = 0; at < (kHeads + 1 + 12) * 2; ++at) {
    for (const int value : {0, 1, 15, 16, 127, 255}) {
      std::vector<uint8_t> bad = good;
      bad[at] = static_cast<uint8_t>(value);
      if (!fine.Valid(bad, kDim)) continue;
      for (int head = 0; head < kHeads; ++head) {
        const KvFine::Head rows = fine.head(bad.data(), head);
        ASSERT_TRUE(rows.n >= 0 && rows.codes >= bad.data());
        ASSERT_LE(rows.codes + static_cast<size_t>(rows.n) * rows.row_bytes, bad.data() + bad.size());
        for (int i = 0; i < rows.n; ++i) ASSERT_LT(rows.channel(i), kDim);
      }
    }
  }
}

TEST(KvFine, NoRowsNoBytes) {
  const KvFine fine(4, 0, 128);
  EXPECT_EQ(fine.bytes(), 0u);
  EXPECT_TRUE(fine.Valid({}, 64));
  EXPECT_EQ(fine.head(nullptr, 3).n, 0);
}

}  // namespace
}  // namespace kvart
