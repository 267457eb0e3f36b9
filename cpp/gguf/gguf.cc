// Parses GGUF files, alone or in parts. Everything read is hostile until checked. May depend on: base, quant.
// Next for the token: metadata.cc answers what the model asks of the file.
#include "gguf/gguf.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>

#include "gguf/reader.h"
#include "gguf/values.h"

namespace kvart {

using gguf_internal::ByteReader;
using gguf_internal::kReserveAtMost;
using gguf_internal::Quote;
using gguf_internal::ReadValue;

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint64_t kMinKeyValueBytes = 8 + 4 + 1;        // key length, type, the smallest value
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 4 + 8;  // name length, dimensions, type, offset

Status ReadHeader(ByteReader* in, uint32_t* version, uint64_t* n_tensors, uint64_t* n_metadata) {
  uint32_t magic = 0;
  KVART_RETURN_IF_ERROR(in->Read(&magic, "the magic number"));
  if (magic != kMagic) {
    char first[4];
    std::memcpy(first, &magic, sizeof(first));
    return in->Corrupt(0, "not a GGUF file: it begins with " + Quote({first, 4}) + ", not \"GGUF\"");
  }
  KVART_RETURN_IF_ERROR(in->Read(version, "the version"));
  if (*version != 2 && *version != 3) {
    const bool swapped = *version != 0 && (*version & 0xffff) == 0;
    return in->Fail(StatusCode::kUnsupported, 4,
                    swapped ? "a big-endian GGUF file; kvart reads little-endian ones"
                            : "GGUF version " + std::to_string(*version) + "; kvart reads versions 2 and 3");
  }
  KVART_RETURN_IF_ERROR(in->Read(n_tensors, "the tensor count"));
  KVART_RETURN_IF_ERROR(in->Read(n_metadata, "the metadata count"));
  const uint64_t left = in->remaining();
  if (*n_tensors > left / kMinTensorInfoBytes) {
    return in->Corrupt(8, "it claims " + std::to_string(*n_tensors) + " tensors, more than the " +
                              std::to_string(left) + " bytes that follow could describe");
  }
  if (*n_metadata > left / kMinKeyValueBytes) {
    return in->Corrupt(16, "it claims " + std::to_string(*n_metadata) + " metadata entries, more than the " +
                               std::to_string(left) + " bytes that follow could hold");
  }
  return Status::Ok();
}

// What a tensor's description says of its place, and where the description says it.
struct Place {
  std::string_view name;
  uint64_t offset = 0;  // within the data section
  uint64_t at = 0;      // byte of the field in the file
};

// Reads one description into all of *tensor but data.
Status ReadTensorInfo(ByteReader* in, GgufTensor* tensor, Place* place) {
  const uint64_t start = in->offset();
  KVART_RETURN_IF_ERROR(in->ReadString(&place->name, "a tensor's name"));
  tensor->name = std::string(place->name);
  const std::string who = "tensor " + Quote(place->name);
  if (place->name.empty()) return in->Corrupt(start, "a tensor without a name");

  uint32_t n_dims = 0;
  const uint64_t dims_at = in->offset();
  KVART_RETURN_IF_ERROR(in->Read(&n_dims, who));
  if (n_dims < 1 || n_dims > 4) {
    return in->Corrupt(dims_at, who + " has " + std::to_string(n_dims) + " dimensions; 1 to 4 are possible");
  }
  tensor->n_dims = static_cast<int>(n_dims);
  uint64_t n_values = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    const uint64_t at = in->offset();
    KVART_RETURN_IF_ERROR(in->Read(&tensor->dims[i], who));
    const uint64_t dim = tensor->dims[i];
    if (dim == 0) return in->Corrupt(at, who + ": dimension " + std::to_string(i) + " is 0");
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / n_values) {
      return in->Corrupt(at, who + ": its number of values does not fit in 63 bits (dimension " + std::to_string(i) +
                                 " is " + std::to_string(dim) + ")");
    }
    n_values *= dim;
  }

  const uint64_t type_at = in->offset();
  uint32_t type = 0;
  KVART_RETURN_IF_ERROR(in->Read(&type, who));
  const DTypeInfo* info = FindDType(type);
  if (info == nullptr) {
    return in->Fail(StatusCode::kUnsupported, type_at,
                    who + " has type " + std::to_string(type) + " (" + std::string(GgmlTypeName(type)) +
                        "); kvart reads f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k, iq4_nl and iq4_xs");
  }
  tensor->type = info->type;
  const auto block_values = static_cast<uint64_t>(info->block_values);
  const auto block_bytes = static_cast<uint64_t>(info->block_bytes);
  if (tensor->dims[0] % block_values != 0) {
    return in->Corrupt(dims_at + 4, who + " has rows of " + std::to_string(tensor->dims[0]) +
                                        " values, not a multiple of " + std::to_string(block_values) +
                                        ", the block of " + std::string(info->name));
  }
  const uint64_t n_blocks = n_values / block_values;
  if (n_blocks > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / block_bytes) {
    return in->Corrupt(dims_at + 4, who + ": its size in bytes does not fit in 63 bits");
  }
  tensor->bytes = n_blocks * block_bytes;

  place->at = in->offset();
  return in->Read(&place->offset, who);
}

// Where the tensor data begin and how their offsets are aligned.
struct DataSection {
  uint64_t begin = 0;  // may lie past the end of a file without tensors
  uint64_t alignment = kDefaultAlignment;
};

// Sets tensor->data after checking that all its bytes are in the file.
Status PlaceTensor(const ByteReader& in, std::span<const uint8_t> bytes, const DataSection& section, const Place& place,
                   GgufTensor* tensor) {
  const std::string who = "tensor " + Quote(place.name);
  if (place.offset % section.alignment != 0) {
    return in.Corrupt(place.at, who + " has the offset " + std::to_string(place.offset) +
                                    ", not a multiple of the alignment " + std::to_string(section.alignment));
  }
  const uint64_t size = bytes.size() > section.begin ? bytes.size() - section.begin : 0;
  if (place.offset > size || tensor->bytes > size - place.offset) {
    return in.Corrupt(place.at, who + " needs " + std::to_string(tensor->bytes) + " bytes at offset " +
                                    std::to_string(place.offset) + " of the tensor data, which have " +
                                    std::to_string(size) + " bytes: the file is cut short or its description is wrong");
  }
  tensor->data = bytes.data() + section.begin + place.offset;
  return Status::Ok();
}

}  // namespace

struct GgufFile::Impl {
  using FilePtr = std::shared_ptr<GgufFile>;

  // What the metadata say of a split: part number from 0, number of parts (1: not split), tensors in all parts.
  struct Split {
    uint64_t no = 0;
    uint64_t count = 1;
    std::optional<uint64_t> n_tensors;
  };

  // One file; a part of a split one is parsed like any other.
  static Result<FilePtr> ParseOne(std::span<const uint8_t> bytes, const std::string& name) {
    FilePtr file(new GgufFile());
    file->path_ = name;
    file->file_bytes_ = bytes.size();
    ByteReader in(bytes, name);
    uint64_t n_tensors = 0;
    uint64_t n_metadata = 0;
    KVART_RETURN_IF_ERROR(ReadHeader(&in, &file->version_, &n_tensors, &n_metadata));
    DataSection section;
    KVART_RETURN_IF_ERROR(ReadMetadata(&in, n_metadata, file.get(), &section.alignment));

    std::vector<Place> places;
    places.reserve(static_cast<size_t>(std::min(n_tensors, kReserveAtMost)));
    for (uint64_t i = 0; i < n_tensors; ++i) {
      const uint64_t at = in.offset();
      GgufTensor tensor;
      Place place;
      KVART_RETURN_IF_ERROR(ReadTensorInfo(&in, &tensor, &place));
      if (!file->tensor_index_.emplace(place.name, file->tensors_.size()).second) {
        return in.Corrupt(at, "tensor " + Quote(place.name) + " appears twice");
      }
      file->tensors_.push_back(std::move(tensor));
      places.push_back(place);
    }
    section.begin = (in.offset() + section.alignment - 1) / section.alignment * section.alignment;
    for (size_t i = 0; i < places.size(); ++i) {
      KVART_RETURN_IF_ERROR(PlaceTensor(in, bytes, section, places[i], &file->tensors_[i]));
    }
    return file;
  }

  static Status ReadMetadata(ByteReader* in, uint64_t n, GgufFile* file, uint64_t* alignment) {
    file->metadata_.reserve(static_cast<size_t>(std::min(n, kReserveAtMost)));
    uint64_t budget = kMaxArrayElements;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = in->offset();
      std::string_view key;
      KVART_RETURN_IF_ERROR(in->ReadString(&key, "a metadata key"));
      if (key.empty()) return in->Corrupt(at, "an empty metadata key");
      const uint64_t value_at = in->offset();
      GgufValue value;
      KVART_RETURN_IF_ERROR(ReadValue(in, "metadata " + Quote(key), &budget, &value));
      if (!file->metadata_index_.emplace(key, file->metadata_.size()).second) {
        return in->Corrupt(at, "metadata key " + Quote(key) + " appears twice");
      }
      if (key == "general.alignment") {
        const uint64_t* found = std::get_if<uint64_t>(&value);
        if (found == nullptr || *found < 8 || *found > 0x80000000u || (*found & (*found - 1)) != 0) {
          return in->Corrupt(value_at,
                             "general.alignment is " +
                                 (found != nullptr ? std::to_string(*found) : std::string("not an unsigned integer")) +
                                 "; wanted: a power of two from 8 to 2147483648");
        }
        *alignment = *found;
      }
      file->metadata_.emplace_back(std::string(key), std::move(value));
    }
    return Status::Ok();
  }

  static Result<Split> ReadSplit(const GgufFile& file) {
    Split split;
    for (auto [key, out] : {std::pair{"split.no", &split.no}, std::pair{"split.count", &split.count}}) {
      if (file.Find(key) == nullptr) continue;
      KVART_ASSIGN_OR_RETURN(*out, file.GetUint(key));
    }
    if (file.Find("split.tensors.count") != nullptr) {
      KVART_ASSIGN_OR_RETURN(split.n_tensors, file.GetUint("split.tensors.count"));
    }
    if (split.count == 0) split.count = 1;
    if (split.count > 99999 || split.no >= split.count) {
      return Corrupt(file, "it says that it is part " + std::to_string(split.no) + " (split.no, from 0) of " +
                               std::to_string(split.count) + " (split.count, at most 99999)");
    }
    return split;
  }

  static Status Corrupt(const GgufFile& file, const std::string& message) {
    return {StatusCode::kCorrupt, file.path_ + ": " + message, file.path_};
  }

  // "-00001-of-00003.gguf"
  static std::string PartSuffix(uint64_t no, uint64_t count) {
    auto five = [](uint64_t v) {
      const std::string digits = std::to_string(v);
      return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
    };
    return "-" + five(no + 1) + "-of-" + five(count) + ".gguf";
  }

  static Result<FilePtr> OpenAll(const std::string& path) {
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, Mapping::Open(path));
    KVART_ASSIGN_OR_RETURN(FilePtr first, ParseOne(mapping->bytes(), path));
    first->parts_.push_back(std::move(mapping));
    KVART_ASSIGN_OR_RETURN(const Split split, ReadSplit(*first));
    if (split.count == 1) return first;

    const std::string suffix = PartSuffix(split.no, split.count);
    if (path.size() < suffix.size() || path.compare(path.size() - suffix.size(), suffix.size(), suffix) != 0) {
      return Status(StatusCode::kInvalidArgument,
                    path + " is part " + std::to_string(split.no + 1) + " of " + std::to_string(split.count) +
                        ", but its name does not end with " + suffix + ", so that the other parts cannot be found",
                    path);
    }
    const std::string stem = path.substr(0, path.size() - suffix.size());
    if (split.no != 0) {
      return Status(StatusCode::kInvalidArgument,
                    path + " is part " + std::to_string(split.no + 1) + " of " + std::to_string(split.count) +
                        ": open the first, " + stem + PartSuffix(0, split.count),
                    path);
    }
    for (uint64_t no = 1; no < split.count; ++no) {
      KVART_RETURN_IF_ERROR(AddPart(stem + PartSuffix(no, split.count), no, split, first.get()));
    }
    if (split.n_tensors.has_value() && *split.n_tensors != first->tensors_.size()) {
      return Corrupt(*first, "split.tensors.count is " + std::to_string(*split.n_tensors) + ", but the parts have " +
                                 std::to_string(first->tensors_.size()) + " tensors");
    }
    return first;
  }

  static Status AddPart(const std::string& path, uint64_t no, const Split& split, GgufFile* first) {
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, Mapping::Open(path));
    KVART_ASSIGN_OR_RETURN(FilePtr part, ParseOne(mapping->bytes(), path));
    KVART_ASSIGN_OR_RETURN(const Split found, ReadSplit(*part));
    if (found.no != no || found.count != split.count || found.n_tensors != split.n_tensors) {
      auto say = [](const Split& s, uint64_t part_no) {
        return "part " + std::to_string(part_no + 1) + " of " + std::to_string(s.count) + " with " +
               (s.n_tensors.has_value() ? std::to_string(*s.n_tensors) : std::string("an unknown number of")) +
               " tensors";
      };
      return Corrupt(*part, "it says that it is " + say(found, found.no) + "; the first part wants " + say(split, no));
    }
    // The index's keys are views into the part's mapping, which first keeps from here on.
    first->parts_.push_back(std::move(mapping));
    first->file_bytes_ += part->file_bytes_;
    for (const auto& [name, i] : part->tensor_index_) {
      if (first->tensor_index_.count(name) != 0)
        return Corrupt(*part, "tensor " + Quote(name) + " is in an earlier part too");
      first->tensor_index_.emplace(name, first->tensors_.size() + i);
    }
    for (GgufTensor& tensor : part->tensors_) {
      tensor.part = static_cast<uint32_t>(no);
      first->tensors_.push_back(std::move(tensor));
    }
    return Status::Ok();
  }

  static Result<FilePtr> ParseAlone(std::span<const uint8_t> bytes, const std::string& name) {
    KVART_ASSIGN_OR_RETURN(FilePtr file, ParseOne(bytes, name));
    KVART_ASSIGN_OR_RETURN(const Split split, ReadSplit(*file));
    if (split.count == 1) return file;
    return Status(StatusCode::kUnsupported,
                  name + ": one part of " + std::to_string(split.count) + ", which can only be opened by path", name);
  }

  // The containers' exceptions end here.
  template <class Read>
  static Result<std::shared_ptr<const GgufFile>> Guard(const std::string& name, Read read) {
    try {
      KVART_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, read());
      return file;
    } catch (const std::bad_alloc&) {
      return Status(StatusCode::kOutOfMemory, name + ": out of memory while reading the metadata", name);
    } catch (const std::length_error&) {
      return Status(StatusCode::kOutOfMemory, name + ": the metadata do not fit in memory", name);
    }
  }
};

Result<std::shared_ptr<const GgufFile>> GgufFile::Open(const std::string& path) {
  return Impl::Guard(path, [&] { return Impl::OpenAll(path); });
}

Result<std::shared_ptr<const GgufFile>> GgufFile::Parse(std::span<const uint8_t> bytes, const std::string& name) {
  return Impl::Guard(name, [&] { return Impl::ParseAlone(bytes, name); });
}

}  // namespace kvart
