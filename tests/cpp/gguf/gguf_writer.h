// Builds GGUF files in memory, right or deliberately wrong, for tests. May depend on: quant/dtype.h.
// Typical: GgufWriter w; w.Uint32("a.b", 1); w.Tensor("x", DType::kF32, {4, 2}, bytes); auto file = w.Build();
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/dtype.h"

namespace kvart::testing {

// Little-endian bytes that grow.
class Bytes {
 public:
  template <class T>
  Bytes& Put(T value) {
    const size_t at = data_.size();
    data_.resize(at + sizeof(T));
    std::memcpy(data_.data() + at, &value, sizeof(T));
    return *this;
  }
  Bytes& PutString(std::string_view text) { return Put(uint64_t{text.size()}).PutRaw(text.data(), text.size()); }
  Bytes& PutRaw(const void* from, size_t n) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    data_.insert(data_.end(), bytes, bytes + n);
    return *this;
  }
  void PadTo(uint64_t alignment) {
    while (data_.size() % alignment != 0) data_.push_back(0);
  }
  const std::vector<uint8_t>& data() const { return data_; }

 private:
  std::vector<uint8_t> data_;
};

// Public fields may be changed before Build to make a file wrong.
class GgufWriter {
 public:
  struct TensorInfo {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> dims;  // fastest first
    uint64_t offset;
  };

  uint32_t version = 3;
  uint64_t alignment = 32;  // of the layout; Alignment() writes the key as well
  int64_t n_tensors = -1;   // -1: the true count
  int64_t n_metadata = -1;
  std::vector<TensorInfo> infos;

  void Uint8(std::string_view key, uint8_t v) { Scalar(key, 0, v); }
  void Int8(std::string_view key, int8_t v) { Scalar(key, 1, v); }
  void Uint16(std::string_view key, uint16_t v) { Scalar(key, 2, v); }
  void Int16(std::string_view key, int16_t v) { Scalar(key, 3, v); }
  void Uint32(std::string_view key, uint32_t v) { Scalar(key, 4, v); }
  void Int32(std::string_view key, int32_t v) { Scalar(key, 5, v); }
  void Float32(std::string_view key, float v) { Scalar(key, 6, v); }
  void Bool(std::string_view key, bool v) { Scalar(key, 7, static_cast<uint8_t>(v)); }
  void Uint64(std::string_view key, uint64_t v) { Scalar(key, 10, v); }
  void Int64(std::string_view key, int64_t v) { Scalar(key, 11, v); }
  void Float64(std::string_view key, double v) { Scalar(key, 12, v); }
  void String(std::string_view key, std::string_view v) { Key(key, 8).PutString(v); }
  void Strings(std::string_view key, const std::vector<std::string>& values) {
    Key(key, 9).Put(uint32_t{8}).Put(uint64_t{values.size()});
    for (const std::string& v : values) metadata_.PutString(v);
  }
  // type: the value type's id; must fit T.
  template <class T>
  void Array(std::string_view key, uint32_t type, const std::vector<T>& values) {
    Key(key, 9).Put(type).Put(uint64_t{values.size()});
    for (const T& v : values) metadata_.Put(v);
  }
  void Alignment(uint32_t v) {
    alignment = v;
    Uint32("general.alignment", v);
  }
  // A key and a type id; the caller puts the value.
  Bytes& Key(std::string_view key, uint32_t type) {
    ++keys_;
    return metadata_.PutString(key).Put(type);
  }

  void Tensor(std::string_view name, DType type, std::vector<uint64_t> dims, const std::vector<uint8_t>& bytes) {
    data_.PadTo(alignment);
    infos.push_back({std::string(name), static_cast<uint32_t>(type), std::move(dims), data_.data().size()});
    data_.PutRaw(bytes.data(), bytes.size());
  }
  void Tensor(std::string_view name, std::vector<uint64_t> dims, const std::vector<float>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    Tensor(name, DType::kF32, std::move(dims), bytes);
  }

  std::vector<uint8_t> Build() const {
    Bytes out;
    out.PutRaw("GGUF", 4).Put(version);
    out.Put(n_tensors < 0 ? uint64_t{infos.size()} : static_cast<uint64_t>(n_tensors));
    out.Put(n_metadata < 0 ? keys_ : static_cast<uint64_t>(n_metadata));
    out.PutRaw(metadata_.data().data(), metadata_.data().size());
    for (const TensorInfo& info : infos) {
      out.PutString(info.name).Put(static_cast<uint32_t>(info.dims.size()));
      for (uint64_t dim : info.dims) out.Put(dim);
      out.Put(info.type).Put(info.offset);
    }
    if (!infos.empty()) out.PadTo(alignment);
    out.PutRaw(data_.data().data(), data_.data().size());
    return out.data();
  }
  // False when the file cannot be written.
  bool Write(const std::string& path) const {
    const std::vector<uint8_t> bytes = Build();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return file.good();
  }

 private:
  template <class T>
  void Scalar(std::string_view key, uint32_t type, T value) {
    Key(key, type).Put(value);
  }

  Bytes metadata_;
  Bytes data_;
  uint64_t keys_ = 0;
};

}  // namespace kvart::testing
