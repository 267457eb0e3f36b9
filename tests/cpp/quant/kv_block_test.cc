// K/V blocks: bytes written out by hand, a plain encoder that the fast one must equal, error bounds, hostile numbers,
// names.
#include "quant/kv_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "quant/half.h"

namespace kvart {
namespace {

using Bytes = std::vector<uint8_t>;
using Halves = std::vector<uint16_t>;

constexpr const char* kNames[] = {
    "f32",          "f16",           "int8",       "int8-g32",   "int8-g64",       "int8-g128",
    "int4",         "int4-g32",      "int4-g64",   "int4-g128",  "int4-sym",       "int4-sym-g32",
    "int4-sym-g64", "int4-sym-g128", "int4-knorm", "int4-token", "int4-token-g64", "int4-token-g128"};

std::vector<KvFormat> Integers() {
  std::vector<KvFormat> formats;
  for (const char* name : kNames) {
    const KvFormats parsed = ParseKvFormats(name, name).value();
    if (parsed.k.is_float()) continue;
    formats.push_back(parsed.k);
    formats.push_back(parsed.v);
  }
  return formats;
}

float HalfAt(const Bytes& bytes, size_t at) {
  return HalfToFloat(static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8));
}

// Which parameter a value has.
size_t GroupOf(const KvBlock& b, int t, int c) {
  return static_cast<size_t>((b.format().axis == KvAxis::kChannel ? t : c) / b.group());
}
size_t IndexOf(const KvBlock& b, int t, int c) {
  return static_cast<size_t>(b.format().axis == KvAxis::kChannel ? c : t);
}
size_t ScaleByte(const KvBlock& b, int t, int c) {
  return b.params() + (GroupOf(b, t, c) * static_cast<size_t>(b.n_per_group()) * 2 + IndexOf(b, t, c)) * 2;
}
size_t CentreByte(const KvBlock& b, int t, int c) {
  return ScaleByte(b, t, c) + static_cast<size_t>(b.n_per_group()) * 2;
}
size_t NormByte(const KvBlock& b, int t) {
  return b.bytes() - static_cast<size_t>(b.tokens() - t) * 2;
}
int CodeOf(const KvBlock& b, const Bytes& bytes, int t, int c) {
  const KvBlock::At at = b.CodeAt(t, c);
  return b.format().code == KvCode::kInt4 ? bytes[at.byte] >> at.shift & 15 : static_cast<int8_t>(bytes[at.byte]);
}

// ---- The definition, value by value.

uint16_t ToHalf(float x) {
  return std::isnan(x) ? uint16_t{0x7e00} : FloatToHalf(x);
}

void PutHalf(Bytes* bytes, size_t at, uint16_t half) {
  (*bytes)[at] = static_cast<uint8_t>(half);
  (*bytes)[at + 1] = static_cast<uint8_t>(half >> 8);
}

float PlainCode(float x, float centre, float scale, bool four_bits) {
  if (!(scale > 0)) return four_bits ? 8.0f : 0.0f;
  float n = (x - centre) / scale;
  if (four_bits) n = n + 7.5f;
  const float least = four_bits ? 0.0f : -127.0f, most = four_bits ? 15.0f : 127.0f;
  n = n > least ? n : least;
  n = n < most ? n : most;
  return std::nearbyint(n);
}

Bytes Plain(const KvBlock& b, const Halves& x, int first) {
  const bool four_bits = b.format().code == KvCode::kInt4;
  Bytes out(b.bytes(), 0);
  std::vector<float> values;
  for (const uint16_t half : x) values.push_back(HalfToFloat(half));
  for (int t = first; t < b.tokens() && b.format().norm; ++t) {
    float* row = values.data() + t * b.head_dim();
    float sum = 0;
    for (int c = 0; c < b.head_dim(); ++c) sum = sum + row[c] * row[c];
    const uint16_t norm = ToHalf(std::sqrt(sum));
    PutHalf(&out, NormByte(b, t), norm);
    for (int c = 0; c < b.head_dim() && HalfToFloat(norm) > 0; ++c) row[c] = row[c] / HalfToFloat(norm);
  }
  const size_t n_params = static_cast<size_t>(b.n_groups() * b.n_per_group());
  std::vector<float> low(n_params, INFINITY), high(n_params, -INFINITY), scale(n_params), centre(n_params);
  const auto param = [&](int t, int c) {
    return GroupOf(b, t, c) * static_cast<size_t>(b.n_per_group()) + IndexOf(b, t, c);
  };
  for (int t = first; t < b.tokens(); ++t) {
    for (int c = 0; c < b.head_dim(); ++c) {
      const float v = values[static_cast<size_t>(t * b.head_dim() + c)];
      low[param(t, c)] = v < low[param(t, c)] ? v : low[param(t, c)];
      high[param(t, c)] = v > high[param(t, c)] ? v : high[param(t, c)];
    }
  }
  for (int t = 0; t < b.tokens(); ++t) {
    for (int c = 0; c < b.head_dim(); ++c) {
      const size_t i = param(t, c);
      uint16_t s = 0, m = 0;
      if (low[i] <= high[i]) {
        m = b.format().symmetric ? 0 : ToHalf(0.5f * (low[i] + high[i]));
        const float above = high[i] - HalfToFloat(m), below = HalfToFloat(m) - low[i];
        const float most = (above > below ? above : below) / (four_bits ? 7.5f : 127.0f);
        s = ToHalf(most);
        if (HalfToFloat(s) < most) ++s;
      }
      scale[i] = HalfToFloat(s);
      centre[i] = HalfToFloat(m);
      PutHalf(&out, ScaleByte(b, t, c), s);
      PutHalf(&out, CentreByte(b, t, c), m);
    }
  }
  for (int t = 0; t < b.tokens(); ++t) {
    for (int c = 0; c < b.head_dim(); ++c) {
      const size_t i = param(t, c);
      const float code = PlainCode(values[static_cast<size_t>(t * b.head_dim() + c)], centre[i],
                                   t < first ? 0.0f : scale[i], four_bits);
      const KvBlock::At at = b.CodeAt(t, c);
      out[at.byte] = static_cast<uint8_t>(out[at.byte] | static_cast<uint8_t>(static_cast<int8_t>(code)) << at.shift);
    }
  }
  return out;
}

Bytes Encode(const KvBlock& b, const Halves& x, int first = 0) {
  Bytes bytes(b.bytes(), 0xa5);  // what is not written shows
  b.Encode(x.data(), first, bytes.data());
  return bytes;
}
std::vector<float> Decode(const KvBlock& b, const Bytes& bytes) {
  std::vector<float> x(static_cast<size_t>(b.tokens() * b.head_dim()));
  b.Decode(bytes.data(), x.data());
  return x;
}

// Like a model's: most channels around zero, some far away.
Halves Rows(std::mt19937& random, int tokens, int head_dim) {
  const auto uniform = [&] { return static_cast<float>(random() >> 8) * 0x1p-23f - 1; };
  std::vector<float> bias;
  for (int c = 0; c < head_dim; ++c) bias.push_back(random() % 8 == 0 ? uniform() * 100 : uniform());
  Halves x;
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < head_dim; ++c) x.push_back(FloatToHalf(bias[static_cast<size_t>(c)] + uniform() * 3));
  }
  return x;
}

// ---- Bytes

TEST(KvBlockTest, BytesOfInt4Keys) {
  constexpr int kCodes[8] = {0, 15, 3, 5, 8, 10, 12, 1};
  Halves x;  // channel c lies around c, in steps of one
  for (int t = 0; t < 8; ++t) {
    for (int c = 0; c < 8; ++c) x.push_back(FloatToHalf(static_cast<float>(c + kCodes[(t + c) % 8]) - 7.5f));
  }
  const Bytes want = {
      0x80, 0xaf, 0xc3, 0x15,  // token 0: channels 0 … 3 in the low halves, 4 … 7 in the high ones
      0xaf, 0xc3, 0x15, 0x08,  // token 1
      0xc3, 0x15, 0x08, 0xfa,  //
      0x15, 0x08, 0xfa, 0x3c,  //
      0x08, 0xfa, 0x3c, 0x51,  //
      0xfa, 0x3c, 0x51, 0x80,  //
      0x3c, 0x51, 0x80, 0xaf,  //
      0x51, 0x80, 0xaf, 0xc3,  //
      0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c, 0x00, 0x3c,  // scales: 1
      0x00, 0x00, 0x00, 0x3c, 0x00, 0x40, 0x00, 0x42, 0x00, 0x44, 0x00, 0x45, 0x00, 0x46, 0x00, 0x47,  // centres: 0 … 7
  };
  const KvBlock block(ParseKvFormats("int4", "int4").value().k, true, 8, 8);
  EXPECT_EQ(Encode(block, x), want);
  const std::vector<float> decoded = Decode(block, want);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(decoded[i], HalfToFloat(x[i])) << i;
}

TEST(KvBlockTest, BytesOfInt8Values) {
  constexpr int kCodes[8] = {-127, 127, 0, 1, -1, 64, -64, 100};
  Halves x;  // token t lies around t, in steps of a half
  for (int t = 0; t < 8; ++t) {
    for (int c = 0; c < 8; ++c)
      x.push_back(FloatToHalf(static_cast<float>(t) + 0.5f * static_cast<float>(kCodes[(t + c) % 8])));
  }
  const Bytes want = {
      0x81, 0x7f, 0x00, 0x01, 0x7f, 0x00, 0x01, 0xff,
      0x00, 0x01, 0xff, 0x40, 0x01, 0xff, 0x40, 0xc0,  // tokens 0 … 3 of channels 0 … 3
      0xff, 0x40, 0xc0, 0x64, 0x40, 0xc0, 0x64, 0x81,
      0xc0, 0x64, 0x81, 0x7f, 0x64, 0x81, 0x7f, 0x00,  // … of channels 4 … 7
      0xff, 0x40, 0xc0, 0x64, 0x40, 0xc0, 0x64, 0x81,
      0xc0, 0x64, 0x81, 0x7f, 0x64, 0x81, 0x7f, 0x00,  // tokens 4 … 7
      0x81, 0x7f, 0x00, 0x01, 0x7f, 0x00, 0x01, 0xff,
      0x00, 0x01, 0xff, 0x40, 0x01, 0xff, 0x40, 0xc0,  //
      0x00, 0x38, 0x00, 0x38, 0x00, 0x38, 0x00, 0x38,
      0x00, 0x38, 0x00, 0x38, 0x00, 0x38, 0x00, 0x38,  // scales: 0.5
      0x00, 0x00, 0x00, 0x3c, 0x00, 0x40, 0x00, 0x42,
      0x00, 0x44, 0x00, 0x45, 0x00, 0x46, 0x00, 0x47,  // centres: 0 … 7
  };
  const KvBlock block(ParseKvFormats("int8", "int8").value().v, false, 8, 8);
  EXPECT_EQ(Encode(block, x), want);
  const std::vector<float> decoded = Decode(block, want);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(decoded[i], HalfToFloat(x[i])) << i;
}

TEST(KvBlockTest, BytesOfUnitKeys) {
  Halves x;  // token t: a vector of length 2 t + 2
  for (int t = 0; t < 8; ++t) {
    for (int c = 0; c < 8; ++c)
      x.push_back(FloatToHalf(c >= 4 ? 0.0f : static_cast<float>(c % 2 == 0 ? t + 1 : -t - 1)));
  }
  const Bytes want = {
      0x88, 0x88, 0x88, 0x88, 0x8f, 0x80, 0x8f, 0x80,
      0x8f, 0x80, 0x8f, 0x80, 0x8f, 0x80, 0x8f, 0x80,  // token 0 is a sink
      0x8f, 0x80, 0x8f, 0x80, 0x8f, 0x80, 0x8f, 0x80,
      0x8f, 0x80, 0x8f, 0x80, 0x8f, 0x80, 0x8f, 0x80,  //
      0x00, 0x00, 0x45, 0x2c, 0x45, 0x2c, 0x45, 0x2c,
      0x45, 0x2c, 0x45, 0x2c, 0x45, 0x2c, 0x45, 0x2c,  // 0.5 / 7.5, rounded up
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // centres
      0x00, 0x00, 0x00, 0x44, 0x00, 0x46, 0x00, 0x48,
      0x00, 0x49, 0x00, 0x4a, 0x00, 0x4b, 0x00, 0x4c,  // lengths: 4, 6 … 16
  };
  const KvBlock block(ParseKvFormats("int4-knorm", "int4-knorm").value().k, true, 8, 8);
  EXPECT_EQ(Encode(block, x, 1), want);
}

// Infinities of both signs have no middle: a NaN, the same one on every machine. A NaN is in nobody's way.
TEST(KvBlockTest, BytesOfBrokenKeys) {
  Halves x(8 * 8, 0x3c00);
  x[0] = 0x7c00;
  x[8] = 0xfc00;
  x[1] = 0xfe01;
  Bytes want(32, 0x88);
  for (const uint16_t half :
       {0x7e00, 0, 0, 0, 0, 0, 0, 0, 0x7e00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00}) {
    want.push_back(static_cast<uint8_t>(half));
    want.push_back(static_cast<uint8_t>(half >> 8));
  }
  EXPECT_EQ(Encode(KvBlock(ParseKvFormats("int4", "int4").value().k, true, 8, 8), x), want);
}

TEST(KvBlockTest, FloatsAreKeptAsInTheOpenPage) {
  std::mt19937 random(1);
  for (const bool keys : {false, true}) {
    for (const char* name : {"f16", "f32"}) {
      const KvBlock block(ParseKvFormats(name, name).value().k, keys, 16, 24);
      const size_t size = block.format().code == KvCode::kF16 ? 2 : 4;
      ASSERT_EQ(block.bytes(), 16u * 24 * size);
      const Halves x = Rows(random, 16, 24);
      const Bytes bytes = Encode(block, x);
      const std::vector<float> decoded = Decode(block, bytes);
      Bytes placed(block.bytes(), 0xa5);
      block.Place(decoded.data(), placed.data());
      EXPECT_EQ(placed, bytes);
      for (int t = 0; t < 16; ++t) {
        for (int c = 0; c < 24; ++c) {
          const size_t i = static_cast<size_t>(t * 24 + c),
                       at = static_cast<size_t>(keys ? (t / 8 * 24 + c) * 8 + t % 8 : t * 24 + c);
          float value = HalfAt(bytes, at * size);
          if (size == 4) std::memcpy(&value, &bytes[at * 4], 4);
          EXPECT_EQ(value, HalfToFloat(x[i]));
          EXPECT_EQ(decoded[i], HalfToFloat(x[i]));
        }
      }
    }
  }
}

TEST(KvBlockTest, Sizes) {
  const auto bytes = [](const char* name, bool keys) {
    const KvFormats formats = ParseKvFormats(name, name).value();
    return KvBlock(keys ? formats.k : formats.v, keys, 128, 64).bytes();
  };
  EXPECT_EQ(bytes("f16", true), 128u * 64 * 2);
  EXPECT_EQ(bytes("int8", true), 128u * 64 + 64 * 4);
  EXPECT_EQ(bytes("int4", true), 128u * 64 / 2 + 64 * 4);
  EXPECT_EQ(bytes("int4", false), 128u * 64 / 2 + 128 * 4);
  EXPECT_EQ(bytes("int4-g32", true), 128u * 64 / 2 + 4 * 64 * 4);
  EXPECT_EQ(bytes("int4-token", true), 128u * 64 / 2 + 2 * 128 * 4);
  EXPECT_EQ(bytes("int4-knorm", true), 128u * 64 / 2 + 128 * 4 + 128 * 2);
  EXPECT_EQ(bytes("int4-g128", false), 128u * 64 / 2 + 128 * 4) << "a group ends with the head";
}

TEST(KvBlockTest, EveryCodeHasItsPlace) {
  for (const bool keys : {false, true}) {
    for (const char* name : {"int4", "int8"}) {
      const KvBlock block(ParseKvFormats(name, name).value().k, keys, 24, 40);
      const int bits = block.format().code == KvCode::kInt4 ? 4 : 8;
      Bytes taken(block.params(), 0);
      for (int t = 0; t < 24; ++t) {
        for (int c = 0; c < 40; ++c) {
          const KvBlock::At at = block.CodeAt(t, c);
          ASSERT_LT(at.byte, taken.size());
          const int mask = ((1 << bits) - 1) << at.shift;
          ASSERT_EQ(taken[at.byte] & mask, 0) << t << " " << c;
          taken[at.byte] = static_cast<uint8_t>(taken[at.byte] | mask);
        }
      }
      EXPECT_EQ(std::count(taken.begin(), taken.end(), 0xff), static_cast<std::ptrdiff_t>(taken.size()));
    }
  }
}

// ---- Encode equals the definition

void ExpectPlain(const KvFormat& format, bool keys, int tokens, int head_dim, int first, const Halves& x) {
  const KvBlock block(format, keys, tokens, head_dim);
  ASSERT_EQ(Encode(block, x, first), Plain(block, x, first))
      << ToString(format, keys) << (keys ? " keys " : " values ") << tokens << " by " << head_dim << " from " << first;
}

TEST(KvBlockTest, EncodesAsDefined) {
  std::mt19937 random(2);
  std::vector<KvFormat> formats = Integers();
  KvFormat rare = formats.front();  // what no name asks for
  rare.norm = true;
  formats.push_back(rare);
  for (const KvFormat& format : formats) {
    for (const bool keys : {false, true}) {
      for (const auto& [tokens, head_dim] : {std::pair{8, 8}, {128, 64}, {40, 80}, {64, 72}, {256, 16}}) {
        for (const int first : {0, 4, 8, 37, tokens}) {
          if (first <= tokens) ExpectPlain(format, keys, tokens, head_dim, first, Rows(random, tokens, head_dim));
        }
      }
    }
  }
}

// Every half there is: subnormals, the largest, infinities, NaN, both zeros.
TEST(KvBlockTest, EncodesAnyHalves) {
  std::mt19937 random(3);
  constexpr uint16_t kRare[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x7bff,
                                0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfdff, 0x7c01};
  for (const KvFormat& format : Integers()) {
    for (const bool keys : {false, true}) {
      for (int round = 0; round < 8; ++round) {
        Halves x(64 * 64);
        for (uint16_t& half : x) {
          const uint16_t any = static_cast<uint16_t>(random());
          if (round == 0)
            half = any;
          else if (round == 1)
            half = kRare[random() % 12];
          else if (round == 2)
            half = kRare[random() % 7];  // finite
          else if (round == 3)
            half = any & 0x83ff;  // subnormal
          else if (round == 4)
            half = any & 0x8000;  // zeros
          else if (round == 5)
            half = random() % 200 == 0 ? kRare[7 + random() % 5] : FloatToHalf(static_cast<float>(any) * 1e-4f);
          else if (round == 6)
            half = random() % 200 == 0 ? kRare[7 + random() % 5] : uint16_t{0x4200};
          else
            half = random() % 2 == 0 ? uint16_t{0x7bff} : uint16_t{0xfbff};
        }
        ExpectPlain(format, keys, 64, 64, round % 2 == 0 ? 0 : 5, x);
        const KvBlock block(format, keys, 64, 64);
        const std::vector<float> decoded = Decode(block, Encode(block, x));  // of anything, without a trap
        if (round == 3 || round == 4) {
          for (const float value : decoded) ASSERT_TRUE(std::isfinite(value));
        }
      }
    }
  }
}

// ---- What comes back

TEST(KvBlockTest, ErrorIsHalfAStep) {
  std::mt19937 random(4);
  for (const KvFormat& format : Integers()) {
    for (const bool keys : {false, true}) {
      constexpr int kTokens = 128, kHeadDim = 80, kFirst = 4;
      const KvBlock block(format, keys, kTokens, kHeadDim);
      const Halves x = Rows(random, kTokens, kHeadDim);
      const Bytes bytes = Encode(block, x, kFirst);
      const std::vector<float> decoded = Decode(block, bytes);
      for (int t = kFirst; t < kTokens; ++t) {
        const float norm = format.norm ? HalfAt(bytes, NormByte(block, t)) : 1.0f;
        for (int c = 0; c < kHeadDim; ++c) {
          const size_t i = static_cast<size_t>(t * kHeadDim + c);
          const float value = HalfToFloat(x[i]), step = HalfAt(bytes, ScaleByte(block, t, c)) * norm;
          ASSERT_LE(std::fabs(value - decoded[i]), step * 0.50001f + 1e-6f * std::fabs(value) + 1e-6f)
              << ToString(format, keys) << " token " << t << " channel " << c;
        }
      }
    }
  }
}

TEST(KvBlockTest, ConstantsComeBack) {
  for (const KvFormat& format : Integers()) {
    for (const bool keys : {false, true}) {
      for (const float value : {0.0f, 1.0f, -0.3f, 117.0f, -65504.0f, 65504.0f, 0x1p-24f}) {
        if (format.norm && std::fabs(value) > 5000) continue;  // a length that no half holds
        const KvBlock block(format, keys, 32, 64);
        const Halves x(32 * 64, FloatToHalf(value));
        const float rounded = HalfToFloat(x[0]);
        for (const float decoded : Decode(block, Encode(block, x))) {
          // Without a centre the step is what it costs; a length of unit keys is a half.
          const float off = format.symmetric ? std::fabs(rounded) * 0x1p-10f + 0x1p-24f * 8
                            : format.norm    ? std::fabs(rounded) * 0x1p-10f
                                             : 0.0f;
          ASSERT_LE(std::fabs(decoded - rounded), off) << ToString(format, keys) << " " << value;
        }
      }
    }
  }
}

TEST(KvBlockTest, SinksAreNotPartOfRanges) {
  std::mt19937 random(5);
  for (const KvFormat& format : Integers()) {
    for (const bool keys : {false, true}) {
      const KvBlock block(format, keys, 64, 64);
      Halves x = Rows(random, 64, 64);
      const Bytes want = Encode(block, x, 4);
      for (const uint16_t wild : {0x7bff, 0xfc00, 0x7e00, 0x0000}) {
        std::fill(x.begin(), x.begin() + 4 * 64, wild);
        ASSERT_EQ(Encode(block, x, 4), want) << ToString(format, keys);
      }
      for (int t = 0; t < 4; ++t) {
        for (int c = 0; c < 64; ++c) EXPECT_EQ(CodeOf(block, want, t, c), format.code == KvCode::kInt4 ? 8 : 0);
      }
      x[4 * 64] = 0x7bff;
      EXPECT_NE(Encode(block, x, 4), want) << "the first one that counts";
    }
  }
}

TEST(KvBlockTest, TokenKeysHaveGroupsOf32) {
  const KvFormats formats = ParseKvFormats("int4-token", "int4-token").value();
  EXPECT_EQ(formats.k.axis, KvAxis::kToken);
  EXPECT_EQ(formats.k.group, 32);
  const KvBlock block(formats.k, true, 16, 80);
  EXPECT_EQ(block.group(), 32);
  EXPECT_EQ(block.n_groups(), 3);
  EXPECT_EQ(block.n_per_group(), 16);
  Halves x;  // group g of channels spans 15 * 2^g
  for (int t = 0; t < 16; ++t) {
    for (int c = 0; c < 80; ++c) x.push_back(FloatToHalf(std::ldexp(c % 2 == 0 ? 7.5f : -7.5f, c / 32)));
  }
  const Bytes bytes = Encode(block, x);
  for (int t = 0; t < 16; ++t) {
    for (int c = 0; c < 80; ++c) EXPECT_EQ(HalfAt(bytes, ScaleByte(block, t, c)), std::ldexp(1.0f, c / 32));
  }
  EXPECT_EQ(ScaleByte(block, 3, 64) - block.params(), 2u * 16 * 4 + 3 * 2) << "groups lie one after the other";
}

// ---- Names

TEST(KvFormatTest, NamesComeBack) {
  for (const char* k_name : kNames) {
    for (const char* v_name : kNames) {
      const KvFormats formats = ParseKvFormats(k_name, v_name).value();
      const std::string k = ToString(formats.k, true), v = ToString(formats.v, false);
      EXPECT_EQ(ParseKvFormats(k, v).value(), formats) << k_name << " " << v_name << " as " << k << " " << v;
    }
    const std::string full = ToString(ParseKvFormats(k_name, k_name).value().k, true);
    EXPECT_EQ(full, std::string(k_name) == "int4-token" ? "int4-token-g32" : k_name);
  }
}

TEST(KvFormatTest, UnknownNamesAreRefusedWithTheList) {
  const std::string huge(100000, 'x');
  for (const char* name :
       {"", "int", "int5", "INT4", "f64", "f16-g32", "f32-g64", "int4-g16", "int4-g", "-g32", "int4-g32-g32",
        "int8-sym", "int8-token", "int4-knorm-g32", "int4 ", " int4", "int4-sym-token", huge.c_str()}) {
    const auto keys = ParseKvFormats(name, "int4"), values = ParseKvFormats("int4", name);
    ASSERT_FALSE(keys.ok()) << name;
    ASSERT_FALSE(values.ok()) << name;
    EXPECT_EQ(keys.status().code(), StatusCode::kInvalidArgument);
    const std::string k(keys.status().message()), v(values.status().message());
    EXPECT_EQ(k.find("key format '"), 0u) << k;
    EXPECT_EQ(v.find("value format '"), 0u) << v;
    for (const char* known :
         {"f32", "f16", "int8", "int4", "int4-sym", "int4-token", "int4-knorm", "-g32", "-g64", "-g128"}) {
      EXPECT_NE(k.find(known), std::string::npos) << known;
      EXPECT_NE(v.find(known), std::string::npos) << known;
    }
    EXPECT_LT(k.size(), 300u);
  }
}

}  // namespace
}  // namespace kvart
