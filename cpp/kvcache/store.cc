#include "kvcache/store.h"

#include "base/hash.h"
#include "kvcache/store_impl.h"

namespace kvart {

PageName NameOfPage(const PageName& previous, std::span<const int32_t> ids) {
  Sha256 hash;
  hash.Update(previous.data(), previous.size());
  for (const int32_t id : ids) {
    const uint32_t u = static_cast<uint32_t>(id);
    const uint8_t bytes[4] = {static_cast<uint8_t>(u), static_cast<uint8_t>(u >> 8), static_cast<uint8_t>(u >> 16),
                              static_cast<uint8_t>(u >> 24)};
    hash.Update(bytes, sizeof bytes);
  }
  return hash.Finish();
}

Status CheckPut(const PageFileHeader& header, const StoreOptions& options, const SlotHead& head,
                std::span<const uint8_t> payload) {
  const bool page = head.kind == SlotKind::kPage;
  if (!page && head.kind != SlotKind::kSinks)
    return Status(StatusCode::kInvalidArgument, "page store: a free slot can't be put");
  const size_t wanted_ids = page ? header.page_tokens : 0;
  if (head.ids.size() != wanted_ids) {
    return Errorf(StatusCode::kInvalidArgument, "page store: %zu token ids; wanted %zu", head.ids.size(), wanted_ids);
  }
  if (page ? payload.size() != options.payload_bytes : payload.size() > header.MostPayload()) {
    return Errorf(StatusCode::kInvalidArgument, "page store: a payload of %zu bytes; wanted %llu", payload.size(),
                  static_cast<unsigned long long>(page ? options.payload_bytes : header.MostPayload()));
  }
  return Status::Ok();
}

}  // namespace kvart
