// Packing, the same for all formats: a row's codes are read four columns to a word, and the words' bits go to the
// planes. May depend on: base.
#include "quant/packed.h"

#include <cstring>

namespace kvart {
namespace {

constexpr int kRows = 8;

// ---- Reading: the codes of columns 4 j … 4 j + 3 of group g of a block, one a byte of a word. As they are stored.

// Bits of the bytes p[4 j] … p[4 j + 3].
uint32_t Ones(const uint8_t* p, int j, int shift, uint32_t mask) {
  uint32_t word;
  std::memcpy(&word, p + 4 * j, sizeof word);
  return word >> shift & mask * 0x01010101u;
}
// 32 columns in 16 bytes, low nibbles first.
uint32_t Nibbles(const uint8_t* qs, int j) {
  return Ones(qs, j % 4, 4 * (j / 4), 15);
}
// Bits 4 j … 4 j + 3 of 32.
uint32_t FifthBits(const uint8_t* qh, int j) {
  const uint32_t four = qh[j / 2] >> 4 * (j % 2) & 15u;
  return (four * 0x00204081u & 0x01010101u) << 4;
}

uint32_t CodesOf(const BlockQ4_0& b, int, int j) {
  return Nibbles(b.qs, j);
}
uint32_t CodesOf(const BlockQ4_1& b, int, int j) {
  return Nibbles(b.qs, j);
}
uint32_t CodesOf(const BlockQ5_0& b, int, int j) {
  return Nibbles(b.qs, j) | FifthBits(b.qh, j);
}
uint32_t CodesOf(const BlockQ5_1& b, int, int j) {
  return Nibbles(b.qs, j) | FifthBits(b.qh, j);
}
uint32_t CodesOf(const BlockQ8_0& b, int, int j) {
  const uint32_t word = Ones(reinterpret_cast<const uint8_t*>(b.qs), j, 0, 255);
  const uint32_t other = word ^ 0x80808080u;                                // a byte is 0 where the code is -128
  const uint32_t not_zero = ((other & 0x7f7f7f7fu) + 0x7f7f7f7fu) | other;  // in the top bit
  return word + (~not_zero >> 7 & 0x01010101u);                             // -128 becomes -127
}
uint32_t CodesOf(const BlockQ2_K& b, int g, int j) {
  return Ones(b.qs + 32 * (g / 4), j, 2 * (g % 4), 3);
}
uint32_t CodesOf(const BlockQ3_K& b, int g, int j) {
  return Ones(b.qs + 32 * (g / 4), j, 2 * (g % 4), 3) | Ones(b.hmask, j, g, 1) << 2;
}
uint32_t CodesOf(const BlockQ4_K& b, int g, int j) {
  return Ones(b.qs + 32 * (g / 2), j, 4 * (g % 2), 15);
}
uint32_t CodesOf(const BlockQ5_K& b, int g, int j) {
  return Ones(b.qs + 32 * (g / 2), j, 4 * (g % 2), 15) | Ones(b.qh, j, g, 1) << 4;
}
uint32_t CodesOf(const BlockQ6_K& b, int g, int j) {
  return Ones(b.ql + 64 * (g / 4) + 32 * (g % 2), j, 4 * (g % 4 / 2), 15) | Ones(b.qh + 32 * (g / 4), j, 2 * (g % 4), 3)
                                                                                << 4;
}
uint32_t CodesOf(const BlockIQ4_NL& b, int, int j) {
  return Nibbles(b.qs, j);
}
uint32_t CodesOf(const BlockIQ4_XS& b, int g, int j) {
  return Nibbles(b.qs + 16 * g, j);
}

// ---- Writing: row r of a group of 32 columns.

template <class Group>
void PutCodes(const uint32_t (&codes)[8], int r, Group& out) {
  const auto put = [r](auto* vector, uint32_t word) { std::memcpy(vector + 4 * r, &word, sizeof word); };
  if constexpr (HasQ8<Group>) {
    for (int j = 0; j < 8; ++j) put(out.q8[j], codes[j]);
  }
  if constexpr (HasQ4<Group>) {
    for (int j = 0; j < 4; ++j) put(out.q4[j], (codes[j] & 0x0f0f0f0fu) | (codes[j + 4] & 0x0f0f0f0fu) << 4);
  }
  if constexpr (HasQ2<Group>) {
    for (int h = 0; h < 2; ++h) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) word |= (codes[2 * i + h] >> kQ2At<Group> & 0x03030303u) << 2 * i;
      put(out.q2[h], word);
    }
  }
  if constexpr (HasQ1<Group>) {
    uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= (codes[j] >> kQ1At<Group> & 0x01010101u) << j;
    put(out.q1, word);
  }
}

template <class In, class Group>
void PutScales(const In& in, int g, int r, Group& out) {
  if constexpr (requires { out.mins; }) {
    const ScaleMin s = ScaleMinK4(in.scales, g);
    out.scales[0][r] = s.scale;
    out.mins[0][r] = s.min;
  } else if constexpr (requires { in.scales_l; }) {
    out.scales[0][r] = ScaleIq4Xs(in, g);
  } else {
    for (int s = 0; s < 2; ++s) {
      if constexpr (requires { in.hmask; })
        out.scales[s][r] = ScaleQ3K(in.scales, 2 * g + s);
      else
        out.scales[s][r] = in.scales[2 * g + s];
    }
  }
}

template <class In, class Group>
void PutGroup(const In& in, int g, int r, Group& out) {
  uint32_t codes[8];
  for (int j = 0; j < 8; ++j) codes[j] = CodesOf(in, g, j);
  PutCodes(codes, r, out);
}

template <class In, class Out>
void PutRow(const In& in, int r, Out& out) {
  out.d[r] = in.d;
  if constexpr (requires { out.m; }) out.m[r] = in.m;
  if constexpr (requires { out.dmin; }) out.dmin[r] = in.dmin;
  if constexpr (HasGroups<Out>) {
    for (int g = 0; g < 8; ++g) {
      PutScales(in, g, r, out.groups[g]);
      PutGroup(in, g, r, out.groups[g]);
    }
  } else {
    PutGroup(in, 0, r, out);
  }
}

// rows: eight rows of the file; nullptr beyond the matrix, where dst is zero already.
using PackGroup = void (*)(const uint8_t* const* rows, int64_t cols, uint8_t* dst);

template <class In, DType kType>
void PackCodes(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  for (int64_t b = 0; b < cols / kColumnsX8<BlockX8<kType>>; ++b) {
    auto& out = reinterpret_cast<BlockX8<kType>*>(dst)[b];
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] != nullptr) PutRow(reinterpret_cast<const In*>(rows[r])[b], r, out);
    }
  }
}

template <class T>
void PackNumbers(const uint8_t* const* rows, int64_t cols, uint8_t* dst) {
  T* out = reinterpret_cast<T*>(dst);
  for (int64_t c = 0; c < cols; ++c) {
    for (int r = 0; r < kRows; ++r) {
      if (rows[r] != nullptr) out[c * kRows + r] = reinterpret_cast<const T*>(rows[r])[c];
    }
  }
}

struct Packer {
  PackGroup pack;
  size_t block_bytes;  // of eight rows
};

template <class In, DType kType>
constexpr Packer kPacker = {PackCodes<In, kType>, sizeof(BlockX8<kType>)};
template <class T>
constexpr Packer kNumberPacker = {PackNumbers<T>, kRows * sizeof(T)};

Packer PackerOf(DType type) {
  switch (type) {
    case DType::kF32: return kNumberPacker<uint32_t>;
    case DType::kF16:
    case DType::kBF16: return kNumberPacker<uint16_t>;
    case DType::kQ4_0: return kPacker<BlockQ4_0, DType::kQ4_0>;
    case DType::kQ4_1: return kPacker<BlockQ4_1, DType::kQ4_1>;
    case DType::kQ5_0: return kPacker<BlockQ5_0, DType::kQ5_0>;
    case DType::kQ5_1: return kPacker<BlockQ5_1, DType::kQ5_1>;
    case DType::kQ8_0: return kPacker<BlockQ8_0, DType::kQ8_0>;
    case DType::kQ2_K: return kPacker<BlockQ2_K, DType::kQ2_K>;
    case DType::kQ3_K: return kPacker<BlockQ3_K, DType::kQ3_K>;
    case DType::kQ4_K: return kPacker<BlockQ4_K, DType::kQ4_K>;
    case DType::kQ5_K: return kPacker<BlockQ5_K, DType::kQ5_K>;
    case DType::kQ6_K: return kPacker<BlockQ6_K, DType::kQ6_K>;
    case DType::kIQ4_NL: return kPacker<BlockIQ4_NL, DType::kIQ4_NL>;
    case DType::kIQ4_XS: return kPacker<BlockIQ4_XS, DType::kIQ4_XS>;
  }
  return {};
}

}  // namespace

uint64_t PackedBytes(DType type, Packing packing, int64_t rows, int64_t cols) {
  const uint64_t n = static_cast<uint64_t>(cols);
  if (packing == Packing::kRows) return static_cast<uint64_t>(rows) * RowBytes(type, n);
  const uint64_t blocks = n / static_cast<uint64_t>(Info(type).block_values);
  return static_cast<uint64_t>((rows + kRows - 1) / kRows) * blocks * PackerOf(type).block_bytes;
}

void PackX8(DType type, const uint8_t* src, int64_t rows, int64_t cols, int64_t group_begin, int64_t group_end,
            uint8_t* dst) {
  const int64_t row_bytes = static_cast<int64_t>(RowBytes(type, static_cast<uint64_t>(cols)));
  const uint64_t group_bytes = PackedBytes(type, Packing::kX8, kRows, cols);
  const Packer packer = PackerOf(type);
  for (int64_t g = group_begin; g < group_end; ++g) {
    const uint8_t* group[kRows];
    for (int r = 0; r < kRows; ++r) group[r] = g * kRows + r < rows ? src + (g * kRows + r) * row_bytes : nullptr;
    uint8_t* out = dst + static_cast<uint64_t>(g) * group_bytes;
    if (group[kRows - 1] == nullptr) std::memset(out, 0, group_bytes);
    packer.pack(group, cols, out);
  }
}

}  // namespace kvart
