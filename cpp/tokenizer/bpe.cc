// Byte-pair merging, exact and near-linear.
// May depend on: base. Next for the token: tokenizer.cc collects the ids.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <queue>

namespace kvart {
namespace {

constexpr size_t kShort = 40;  // up to here a scan for the lowest rank beats the queue
constexpr uint32_t kNoRank = UINT32_MAX;

}  // namespace

void Bpe::Reset(const std::vector<int32_t>& byte_ids, size_t max_merges) {
  byte_ids_ = byte_ids;
  int bits = 4;
  while (bits < 62 && (size_t{1} << bits) < 2 * max_merges) ++bits;
  shift_ = 64 - bits;
  slots_.assign(size_t{1} << bits, Merge{});
  next_rank_ = 0;
}

bool Bpe::Add(int32_t left, int32_t right, int32_t merged) {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  size_t slot = Slot(pair);
  while (slots_[slot].rank != kNoRank) {
    if (slots_[slot].pair == pair) return false;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = {pair, next_rank_++, merged};
  return true;
}

const Bpe::Merge& Bpe::Find(int32_t left, int32_t right) const {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  size_t slot = Slot(pair);
  while (slots_[slot].pair != pair && slots_[slot].rank != kNoRank) slot = (slot + 1) & (slots_.size() - 1);
  return slots_[slot];
}

void Bpe::Encode(std::string_view piece, std::vector<int32_t>* out) const {
  if (piece.size() == 1) {
    out->push_back(byte_ids_[static_cast<unsigned char>(piece[0])]);
  } else if (piece.size() <= kShort) {
    EncodeShort(piece, out);
  } else {
    EncodeLong(piece, out);
  }
}

void Bpe::EncodeShort(std::string_view piece, std::vector<int32_t>* out) const {
  int32_t ids[kShort];          // [n]
  const Merge* merges[kShort];  // [n - 1] of ids[i], ids[i + 1]
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = &Find(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i]->rank < merges[best]->rank) best = i;
    }
    if (merges[best]->rank == kNoRank) break;
    ids[best] = merges[best]->merged;
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    if (best + 2 < n) std::copy(merges + best + 2, merges + n - 1, merges + best + 1);
    --n;
    if (best + 1 < n) merges[best] = &Find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = &Find(ids[best - 1], ids[best]);
  }
  out->insert(out->end(), ids, ids + n);
}

// A list of symbols linked both ways, and a queue of (rank, place) over their pairs. An entry whose pair has changed
// since is recognised by its rank and dropped.
void Bpe::EncodeLong(std::string_view piece, std::vector<int32_t>* out) const {
  struct Symbol {
    int32_t id;
    uint32_t rank;    // of the pair with the next symbol; kNoRank for none
    uint32_t before;  // index; n at either end
    uint32_t next;
    int32_t merged;
  };
  const uint32_t n = static_cast<uint32_t>(piece.size());
  std::vector<Symbol> symbols(n);
  const auto look_up = [&](uint32_t i) {
    Symbol& s = symbols[i];
    s.rank = kNoRank;
    if (s.next == n) return false;
    const Merge& merge = Find(s.id, symbols[s.next].id);
    s.rank = merge.rank;
    s.merged = merge.merged;
    return s.rank != kNoRank;
  };
  for (uint32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], kNoRank, i == 0 ? n : i - 1, i + 1, -1};
  }
  std::vector<uint64_t> first;  // rank << 32 | index
  for (uint32_t i = 0; i < n; ++i) {
    if (look_up(i)) first.push_back(uint64_t{symbols[i].rank} << 32 | i);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>(), std::move(first));
  while (!queue.empty()) {
    const uint32_t i = static_cast<uint32_t>(queue.top());
    const uint32_t rank = static_cast<uint32_t>(queue.top() >> 32);
    queue.pop();
    Symbol& s = symbols[i];
    if (s.rank != rank) continue;
    const uint32_t gone = s.next;
    s.id = s.merged;
    s.next = symbols[gone].next;
    symbols[gone].rank = kNoRank;
    if (s.next != n) symbols[s.next].before = i;
    if (look_up(i)) queue.push(uint64_t{s.rank} << 32 | i);
    if (s.before != n && look_up(s.before)) queue.push(uint64_t{symbols[s.before].rank} << 32 | s.before);
  }
  for (uint32_t i = 0; i < n; i = symbols[i].next) out->push_back(symbols[i].id);
}

}  // namespace kvart
