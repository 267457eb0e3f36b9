#include "quant/packed.h"

#include <cstring>

namespace kvart {
namespace {

constexpr int kRows = 8;

template <class Block>
Block ReadBlock(const uint8_t* row, int64_t index) {
  Block block;
  std::memcpy(&block, row + index * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return block;
}

// Four neighbouring columns of a row are four neighbouring bytes of a vector: byte r * 4 of vector j.
void Put4(uint8_t* vectors, int j, int r, const uint8_t* from) {
  std::memcpy(vectors + j * 32 + r * 4, from, 4);
}

// Bits k, k + 4, k + 8 … of a word, side by side: a column's vectors for byte k.
uint8_t EveryFourthBit(uint32_t word, int k) {
  uint32_t x = word >> k & 0x11111111u;
  x = (x | x >> 3) & 0x03030303u;
  x = (x | x >> 6) & 0x000f000fu;
  return static_cast<uint8_t>((x | x >> 12) & 0xffu);
}

void PackQ5_0(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ5_0X8 out{};
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] == nullptr) continue;
      const auto in = ReadBlock<BlockQ5_0>(rows[r], b);
      out.d[r] = in.d;
      for (int j = 0; j < 4; ++j) Put4(out.qs, j, r, in.qs + 4 * j);  // columns i and i + 16 share a byte here as there
      uint32_t high;
      std::memcpy(&high, in.qh, sizeof high);
      for (int k = 0; k < 4; ++k) out.qh[r * 4 + k] = EveryFourthBit(high, k);
    }
    std::memcpy(dst + b * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
}

void PackQ8_0(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ8_0X8 out{};
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] == nullptr) continue;
      const auto in = ReadBlock<BlockQ8_0>(rows[r], b);
      out.d[r] = in.d;
      uint8_t codes[32];
      for (int i = 0; i < 32; ++i)
        codes[i] = static_cast<uint8_t>(in.qs[i] == -128 ? -127 : in.qs[i]);  // see UnpackCodes
      for (int j = 0; j < 8; ++j) Put4(reinterpret_cast<uint8_t*>(out.qs), j, r, codes + 4 * j);
    }
    std::memcpy(dst + b * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
}

// 32 nibbles of one row, in the low or the high halves of 32 bytes, into [4][32].
void PutNibbles(const uint8_t* from, int shift, int r, uint8_t* qs) {
  uint8_t pairs[16];
  for (int i = 0; i < 16; ++i) {
    pairs[i] = static_cast<uint8_t>((from[i] >> shift & 15) | (from[i + 16] >> shift & 15) << 4);
  }
  for (int j = 0; j < 4; ++j) Put4(qs, j, r, pairs + 4 * j);
}

void PackQ4_K(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / kSuperBlock; ++b) {
    BlockQ4_KX8 out{};
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] == nullptr) continue;
      const auto in = ReadBlock<BlockQ4_K>(rows[r], b);
      out.d[r] = in.d;
      out.dmin[r] = in.dmin;
      for (int g = 0; g < 8; ++g) {
        const ScaleMin s = ScaleMinK4(in.scales, g);
        out.scales[g][r] = s.scale;
        out.mins[g][r] = s.min;
        PutNibbles(in.qs + 32 * (g / 2), 4 * (g % 2), r, out.qs[g]);
      }
    }
    std::memcpy(dst + b * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
}

void PackQ6_K(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / kSuperBlock; ++b) {
    BlockQ6_KX8 out{};
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] == nullptr) continue;
      const auto in = ReadBlock<BlockQ6_K>(rows[r], b);
      out.d[r] = in.d;
      for (int s = 0; s < 16; ++s) out.scales[s][r] = in.scales[s];
      for (int g = 0; g < 8; ++g) {
        PutNibbles(in.ql + 64 * (g / 4) + 32 * (g % 2), 4 * (g % 4 / 2), r, out.ql[g]);
        const uint8_t* high = in.qh + 32 * (g / 4);  // bits 2 * (g % 4)
        for (int half = 0; half < 2; ++half) {
          for (int k = 0; k < 4; ++k) {
            uint8_t bits = 0;
            for (int j = 0; j < 4; ++j)
              bits |= static_cast<uint8_t>((high[16 * half + 4 * j + k] >> 2 * (g % 4) & 3) << 2 * j);
            out.qh[g][half * 32 + r * 4 + k] = bits;
          }
        }
      }
    }
    std::memcpy(dst + b * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
}

void PackF16(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] != nullptr)
        std::memcpy(dst + (c * kRows + r) * 2, rows[r] + c * 2, 2);
      else
        std::memset(dst + (c * kRows + r) * 2, 0, 2);
    }
  }
}

// Bytes of a group of eight rows.
uint64_t GroupBytes(DType type, int64_t cols) {
  const uint64_t n = static_cast<uint64_t>(cols);
  switch (type) {
    case DType::kQ4_K: return n / kSuperBlock * sizeof(BlockQ4_KX8);
    default: return kRows * RowBytes(type, n);
  }
}

}  // namespace

bool CanPackX8(DType type) {
  return type == DType::kQ5_0 || type == DType::kQ8_0 || type == DType::kQ4_K || type == DType::kQ6_K ||
         type == DType::kF16;
}

uint64_t PackedBytes(DType type, Packing packing, int64_t rows, int64_t cols) {
  if (packing == Packing::kRows) return static_cast<uint64_t>(rows) * RowBytes(type, static_cast<uint64_t>(cols));
  return static_cast<uint64_t>((rows + kRows - 1) / kRows) * GroupBytes(type, cols);
}

void PackX8(DType type, const uint8_t* src, int64_t rows, int64_t cols, int64_t group_begin, int64_t group_end,
            uint8_t* dst) {
  const int64_t row_bytes = static_cast<int64_t>(RowBytes(type, static_cast<uint64_t>(cols)));
  for (int64_t g = group_begin; g < group_end; ++g) {
    const uint8_t* group[kRows];
    for (int r = 0; r < kRows; ++r) group[r] = g * kRows + r < rows ? src + (g * kRows + r) * row_bytes : nullptr;
    uint8_t* out = dst + static_cast<uint64_t>(g) * GroupBytes(type, cols);
    switch (type) {
      case DType::kQ5_0: PackQ5_0(group, cols, out); break;
      case DType::kQ8_0: PackQ8_0(group, cols, out); break;
      case DType::kQ4_K: PackQ4_K(group, cols, out); break;
      case DType::kQ6_K: PackQ6_K(group, cols, out); break;
      case DType::kF16: PackF16(group, cols, out); break;
      default: break;  // CanPackX8 said no
    }
  }
}

}  // namespace kvart
