// Byte-pair merging: the bytes of one piece of text become token ids, the lowest-ranked pair first.
// May depend on: base. Next for the token: tokenizer.cc collects the ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvart {

// The merge table. Immutable after the last Add; any number of threads may encode with one.
class Bpe {
 public:
  // byte_ids[b] is the token of the single byte b; at most max_merges calls of Add will follow.
  void Reset(const std::vector<int32_t>& byte_ids, size_t max_merges);
  // left, right -> merged, in order of rank. False when the pair is there already.
  bool Add(int32_t left, int32_t right, int32_t merged);

  // Appends the ids of a piece of less than 4 GiB. O(n log n) for any text.
  void Encode(std::string_view piece, std::vector<int32_t>* out) const;

 private:
  struct Merge {
    uint64_t pair = UINT64_MAX;  // left << 32 | right
    uint32_t rank = UINT32_MAX;
    int32_t merged = -1;
  };
  // The merge of a pair, or one of rank UINT32_MAX.
  const Merge& Find(int32_t left, int32_t right) const;
  size_t Slot(uint64_t pair) const { return static_cast<size_t>((pair * 0x9e3779b97f4a7c15u) >> shift_); }
  void EncodeShort(std::string_view piece, std::vector<int32_t>* out) const;
  void EncodeLong(std::string_view piece, std::vector<int32_t>* out) const;

  std::vector<int32_t> byte_ids_;  // [256]
  std::vector<Merge> slots_;       // open addressing, a power of two, never more than half full
  int shift_ = 63;
  uint32_t next_rank_ = 0;
};

}  // namespace kvart
