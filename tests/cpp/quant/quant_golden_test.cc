// Decode and encode against what the `gguf` package makes of the same bytes: tests/golden/quant.bin, bit for bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "quant/quant.h"

namespace kvart {
namespace {

struct Record {
  uint32_t kind;
  DType type;
  std::vector<uint8_t> blocks;
  std::vector<float> floats;
};

std::vector<Record> ReadGolden() {
  std::ifstream file(std::string(KVART_GOLDEN_DIR) + "/quant.bin", std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t at = 0;
  auto u32 = [&] {
    uint32_t v = 0;
    if (bytes.size() - at >= 4) std::memcpy(&v, &bytes[at], 4), at += 4;
    return v;
  };
  std::vector<Record> records;
  if (u32() != 0x4751564bu || u32() != 1) return records;
  const uint32_t count = u32();
  for (uint32_t i = 0; i < count; ++i) {
    Record r;
    r.kind = u32();
    const DTypeInfo* info = FindDType(u32());
    const uint32_t n_values = u32();
    const uint32_t n_bytes = u32();
    if (info == nullptr || bytes.size() - at < n_bytes + 4ull * n_values) return {};
    r.type = info->type;
    r.blocks.assign(bytes.begin() + static_cast<int64_t>(at), bytes.begin() + static_cast<int64_t>(at + n_bytes));
    at += n_bytes;
    r.floats.resize(n_values);
    std::memcpy(r.floats.data(), &bytes[at], 4ull * n_values);
    at += 4ull * n_values;
    records.push_back(std::move(r));
  }
  return records;
}

TEST(QuantGolden, DecodesBitForBit) {
  std::set<DType> seen;
  for (const Record& r : ReadGolden()) {
    if (r.kind != 0) continue;
    seen.insert(r.type);
    ASSERT_EQ(RowBytes(r.type, r.floats.size()), r.blocks.size());
    for (size_t shift = 0; shift < 4; ++shift) {  // unaligned rows as well
      std::vector<uint8_t> src(shift + r.blocks.size());
      std::memcpy(src.data() + shift, r.blocks.data(), r.blocks.size());
      std::vector<float> got(r.floats.size());
      DecodeRow(r.type, src.data() + shift, static_cast<int64_t>(got.size()), got.data());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(std::memcmp(&got[i], &r.floats[i], 4), 0)
            << Info(r.type).name << " value " << i << ": " << got[i] << " instead of " << r.floats[i];
      }
    }
  }
  EXPECT_EQ(seen.size(), 15u);
}

TEST(QuantGolden, EncodesByteForByte) {
  std::set<DType> seen;
  for (const Record& r : ReadGolden()) {
    if (r.kind != 1) continue;
    seen.insert(r.type);
    std::vector<uint8_t> got(r.blocks.size() + 1, 0xa5);
    const Status status = EncodeRow(r.type, r.floats.data(), static_cast<int64_t>(r.floats.size()), got.data());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(got.back(), 0xa5);
    for (size_t i = 0; i < r.blocks.size(); ++i) {
      ASSERT_EQ(got[i], r.blocks[i]) << Info(r.type).name << " byte " << i;
    }
  }
  EXPECT_EQ(seen.size(), 8u);
}

}  // namespace
}  // namespace kvart
