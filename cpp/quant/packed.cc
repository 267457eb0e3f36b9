#include "quant/packed.h"

#include <cstring>

namespace kvart {
namespace {

constexpr int kRows = 8;

// The raw (not centred) codes of one group of 32 columns of one row, and where they go in vector form.
struct Codes {
  uint8_t q[kGroup];
};

Codes RawCodes(DType type, const uint8_t* row, int64_t group, int zero) {
  int8_t codes[kGroup];
  float scales[2], mins[2];
  UnpackCodes(type, row, group, 1, codes, scales, mins);
  Codes raw;
  for (int i = 0; i < kGroup; ++i) raw.q[i] = static_cast<uint8_t>(codes[i] + zero);
  return raw;
}

// Puts the low four bits of row r's codes into qs: [4][32].
void PutNibbles(const Codes& codes, int r, uint8_t* qs) {
  for (int c = 0; c < kGroup; ++c) {
    const int j = c / 4, byte = r * 4 + c % 4;
    qs[(j % 4) * 32 + byte] |= static_cast<uint8_t>((codes.q[c] & 15) << (j < 4 ? 0 : 4));
  }
}

template <class Block>
Block ReadBlock(const uint8_t* row, int64_t index) {
  Block block;
  std::memcpy(&block, row + index * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return block;
}

void PackQ5_0(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ5_0X8 out{};
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] == nullptr) continue;
      out.d[r] = ReadBlock<BlockQ5_0>(rows[r], b).d;
      const Codes codes = RawCodes(DType::kQ5_0, rows[r], b, 16);
      PutNibbles(codes, r, out.qs);
      for (int c = 0; c < kGroup; ++c) out.qh[r * 4 + c % 4] |= static_cast<uint8_t>((codes.q[c] >> 4) << (c / 4));
    }
    std::memcpy(dst + b * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
}

void PackQ8_0(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    BlockQ8_0X8 out{};
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] == nullptr) continue;
      out.d[r] = ReadBlock<BlockQ8_0>(rows[r], b).d;
      const Codes codes = RawCodes(DType::kQ8_0, rows[r], b, 0);
      for (int j = 0; j < 8; ++j) std::memcpy(out.qs + j * 32 + r * 4, codes.q + j * 4, 4);
    }
    std::memcpy(dst + b * static_cast<int64_t>(sizeof out), &out, sizeof out);
  }
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
        PutNibbles(RawCodes(DType::kQ4_K, rows[r], b * 8 + g, 0), r, out.qs[g]);
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
        const Codes codes = RawCodes(DType::kQ6_K, rows[r], b * 8 + g, 32);
        PutNibbles(codes, r, out.ql[g]);
        for (int c = 0; c < kGroup; ++c) {
          const int j = c / 4;
          out.qh[g][(j / 4) * 32 + r * 4 + c % 4] |= static_cast<uint8_t>((codes.q[c] >> 4) << (2 * (j % 4)));
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
