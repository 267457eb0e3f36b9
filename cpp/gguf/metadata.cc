// Typed access to what a GGUF file says of its model. May depend on: base, quant.
// Next for the token: model/config.h reads the geometry, tokenizer/ the vocabulary.
#include <limits>

#include "gguf/gguf.h"
#include "gguf/reader.h"

namespace kvart {
namespace {

using gguf_internal::Quote;

const char* TypeName(const GgufValue& value) {
  constexpr const char* kScalars[] = {"a signed integer", "an unsigned integer", "a floating-point number", "a bool",
                                      "a string"};
  constexpr const char* kArrays[] = {"an array of signed integers", "an array of unsigned integers",
                                     "an array of floating-point numbers", "an array of bools", "an array of strings"};
  static_assert(std::variant_size_v<GgufValue> == 6 && std::variant_size_v<GgufArray> == 5);
  if (const auto* array = std::get_if<GgufArray>(&value)) return kArrays[array->index()];
  return kScalars[value.index()];
}

Status WrongType(const std::string& path, std::string_view key, const GgufValue& value, const char* wanted) {
  return {StatusCode::kInvalidArgument,
          path + ": metadata " + Quote(key) + " is " + TypeName(value) + "; wanted: " + wanted, path};
}

Status Missing(const std::string& path, std::string_view key) {
  return {StatusCode::kNotFound, path + ": there is no metadata " + Quote(key), path};
}

Status OutOfRange(const std::string& path, std::string_view key, const std::string& found, const char* wanted) {
  return {StatusCode::kInvalidArgument, path + ": metadata " + Quote(key) + " is " + found + "; wanted: " + wanted,
          path};
}

// A T in the value, or the reason why there is none.
template <class T>
Result<T> GetExact(const GgufFile& file, std::string_view key, const char* wanted) {
  const GgufValue* value = file.Find(key);
  if (value == nullptr) return Missing(file.path(), key);
  if (const T* found = std::get_if<T>(value)) return *found;
  return WrongType(file.path(), key, *value, wanted);
}

// nullptr when the value is no array of Element.
template <class Element>
const std::vector<Element>* ArrayOf(const GgufValue& value) {
  const auto* array = std::get_if<GgufArray>(&value);
  return array == nullptr ? nullptr : std::get_if<std::vector<Element>>(array);
}

}  // namespace

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata_index_.find(key);
  return found == metadata_index_.end() ? nullptr : &metadata_[found->second].second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const Mapping* GgufFile::MappingOf(const GgufTensor& tensor) const {
  return tensor.part < parts_.size() ? parts_[tensor.part].get() : nullptr;
}

Result<uint64_t> GgufFile::GetUint(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(path_, key);
  if (const auto* u = std::get_if<uint64_t>(value)) return *u;
  const auto* i = std::get_if<int64_t>(value);
  if (i == nullptr) return WrongType(path_, key, *value, "an integer");
  if (*i < 0) return OutOfRange(path_, key, std::to_string(*i), "0 or more");
  return static_cast<uint64_t>(*i);
}

Result<double> GgufFile::GetDouble(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(path_, key);
  if (const auto* d = std::get_if<double>(value)) return *d;
  if (const auto* u = std::get_if<uint64_t>(value)) return static_cast<double>(*u);
  if (const auto* i = std::get_if<int64_t>(value)) return static_cast<double>(*i);
  return WrongType(path_, key, *value, "a number");
}

Result<bool> GgufFile::GetBool(std::string_view key) const {
  return GetExact<bool>(*this, key, "a bool");
}

Result<std::string> GgufFile::GetString(std::string_view key) const {
  KVART_ASSIGN_OR_RETURN(const std::string_view text, GetExact<std::string_view>(*this, key, "a string"));
  return std::string(text);
}

Result<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(path_, key);
  if (const auto* strings = ArrayOf<std::string_view>(*value)) return *strings;
  return WrongType(path_, key, *value, "an array of strings");
}

Result<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(path_, key);
  if (const auto* ints = ArrayOf<int64_t>(*value)) return *ints;
  const auto* uints = ArrayOf<uint64_t>(*value);
  if (uints == nullptr) return WrongType(path_, key, *value, "an array of integers");
  std::vector<int64_t> out;
  out.reserve(uints->size());
  for (const uint64_t u : *uints) {
    if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return OutOfRange(path_, key, "an array with the element " + std::to_string(u), "elements below 2^63");
    }
    out.push_back(static_cast<int64_t>(u));
  }
  return out;
}

Result<std::vector<double>> GgufFile::GetDoubles(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(path_, key);
  if (const auto* doubles = ArrayOf<double>(*value)) return *doubles;
  if (const auto* ints = ArrayOf<int64_t>(*value)) return std::vector<double>(ints->begin(), ints->end());
  if (const auto* uints = ArrayOf<uint64_t>(*value)) return std::vector<double>(uints->begin(), uints->end());
  return WrongType(path_, key, *value, "an array of numbers");
}

}  // namespace kvart
