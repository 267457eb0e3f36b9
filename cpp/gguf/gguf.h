// The GGUF reader: metadata and tensor views over mapped files, every count and offset checked before use.
// May depend on: base, quant. Next for the token: model/config.h and model/weights.h take what they need from here.
// Format: the GGUF specification, versions 2 and 3, little-endian.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "quant/dtype.h"

namespace kvart {

// A view of one tensor's bytes in the mapping. dims[0] is the fastest (columns); unused dims are 1.
struct GgufTensor {
  std::string name;
  DType type = DType::kF32;
  int n_dims = 0;
  uint64_t dims[4] = {1, 1, 1, 1};
  const uint8_t* data = nullptr;  // valid while the GgufFile lives
  uint64_t bytes = 0;             // exactly rows * RowBytes(type, dims[0])
  uint32_t part = 0;              // which file of a split one
};

// An array's elements: numbers widened to 64 bits, or string views into the mapping (not NUL-terminated, may hold any
// bytes). Arrays of arrays are refused.
using GgufArray = std::variant<std::vector<int64_t>, std::vector<uint64_t>, std::vector<double>, std::vector<bool>,
                               std::vector<std::string_view>>;
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string_view, GgufArray>;

// Owns the mappings; immutable after Open, safe to share between threads. All views live as long as it.
class GgufFile {
 public:
  // Over all arrays of one file's metadata; the largest vocabularies have well under a million entries.
  static constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;

  // Opens a file, or all the parts of a split one (name-00001-of-0000N.gguf) given its first, whose metadata holds.
  // Errors name the file and the byte: Corrupt for broken content, Unsupported for what kvart does not read.
  static Result<std::shared_ptr<const GgufFile>> Open(const std::string& path);
  // One unsplit file from bytes that outlive the result: for tests and the fuzzer. Never allocates more than a small
  // multiple of bytes.size(), and no more than kMaxArrayElements array elements.
  static Result<std::shared_ptr<const GgufFile>> Parse(std::span<const uint8_t> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  uint64_t file_bytes() const { return file_bytes_; }  // over all parts

  // Metadata in file order. Keys are unique: a file that repeats one is refused.
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }
  const GgufValue* Find(std::string_view key) const;  // nullptr when absent

  // Typed access. NotFound names the key; InvalidArgument names the type found and the one wanted. Integers of any
  // width and sign convert when the value fits.
  Result<uint64_t> GetUint(std::string_view key) const;
  Result<double> GetDouble(std::string_view key) const;  // integers convert as well
  Result<bool> GetBool(std::string_view key) const;
  Result<std::string> GetString(std::string_view key) const;
  Result<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  Result<std::vector<int64_t>> GetInts(std::string_view key) const;
  Result<std::vector<double>> GetDoubles(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;  // nullptr when absent
  // The mapping that holds a tensor, or nullptr for Parse: to drop or prefetch its pages.
  const Mapping* MappingOf(const GgufTensor& tensor) const;

 private:
  GgufFile() = default;
  struct Impl;  // the parser, in gguf.cc
  friend struct Impl;

  std::string path_;
  uint32_t version_ = 0;
  uint64_t file_bytes_ = 0;
  std::vector<std::shared_ptr<const Mapping>> parts_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::unordered_map<std::string_view, size_t> metadata_index_;  // keys are views into the mapping
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;  // likewise
};

}  // namespace kvart
