// Halves and bfloats: exhaustive over all 65,536 patterns, and the rounding cases one by one.
#include "quant/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvart {
namespace {

bool IsNanHalf(uint16_t h) {
  return (h & 0x7fff) > 0x7c00;
}

TEST(Half, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float f = HalfToFloat(half);
    if (IsNanHalf(half)) {
      EXPECT_TRUE(std::isnan(f)) << h;
      EXPECT_EQ(FloatToHalf(f), half | 0x200) << h;  // quiet
    } else {
      EXPECT_EQ(FloatToHalf(f), half) << h;
    }
  }
}

TEST(Half, EveryFiniteValueIsWhatTheFormatSays) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const int exponent = static_cast<int>(h >> 10);
    const int mantissa = static_cast<int>(h & 0x3ff);
    const double want = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(HalfToFloat(static_cast<uint16_t>(h)), want) << h;
    EXPECT_EQ(HalfToFloat(static_cast<uint16_t>(h | 0x8000)), -want) << h;
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(HalfToFloat(0x8000)), 0x80000000u);
  EXPECT_EQ(HalfToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(HalfToFloat(0xfc00), -std::numeric_limits<float>::infinity());
}

// Between any two neighbours: below the middle goes down, above goes up, the middle goes to the even one.
TEST(Half, RoundsToNearestEvenEverywhere) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const float low = HalfToFloat(static_cast<uint16_t>(h));
    const float high = h == 0x7bff ? 65536.0f : HalfToFloat(static_cast<uint16_t>(h + 1));
    const float middle = low + (high - low) * 0.5f;  // exact: floats have 13 bits more
    const auto even = static_cast<uint16_t>(h + (h & 1));
    ASSERT_EQ(FloatToHalf(middle), even) << h;
    ASSERT_EQ(FloatToHalf(-middle), even | 0x8000) << h;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), h) << h;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 1e9f)), h + 1) << h;
  }
}

TEST(Half, KnownCases) {
  EXPECT_EQ(FloatToHalf(1.0f), 0x3c00);
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e30f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0x0000);  // half the smallest subnormal: a tie, to zero
  EXPECT_EQ(FloatToHalf(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(FloatToHalf(std::bit_cast<float>(0x7f800001u)), 0x7e00);
  EXPECT_EQ(FloatToHalf(std::bit_cast<float>(0xffc00000u)), 0xfe00);
}

TEST(BFloat, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto bfloat = static_cast<uint16_t>(h);
    const bool nan = (h & 0x7fff) > 0x7f80;
    EXPECT_EQ(FloatToBFloat(BFloatToFloat(bfloat)), nan ? h | 0x40 : h);
  }
}

TEST(BFloat, Rounds) {
  EXPECT_EQ(FloatToBFloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // ties to even
  EXPECT_EQ(FloatToBFloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBFloat(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBFloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBFloat(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

}  // namespace
}  // namespace kvart
