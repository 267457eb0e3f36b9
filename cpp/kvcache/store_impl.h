// What both page stores share. May depend on: base, store.h, page_file.h. Used by store_memory.cc and store_file.cc.
#pragma once

#include <span>
#include <string>

#include "base/fs.h"
#include "kvcache/page_file.h"
#include "kvcache/store.h"

namespace kvart {

inline FileSystem& FilesOf(const StoreOptions& options) {
  return options.files != nullptr ? *options.files : SystemFiles();
}

// InvalidArgument where a slot can't hold this.
Status CheckPut(const PageFileHeader& header, const StoreOptions& options, const SlotHead& head,
                std::span<const uint8_t> payload);

}  // namespace kvart
