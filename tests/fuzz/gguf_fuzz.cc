// Any bytes as a GGUF file: parsed, every value looked at through every typed access, the first rows of each tensor
// decoded. Must end in a file or a Status. Build with the preset `fuzz`.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <variant>
#include <vector>

#include "gguf/gguf.h"
#include "quant/quant.h"

namespace {

using namespace kvart;

uint64_t g_sum = 0;  // keeps the reads from being optimised away

void TouchBytes(std::string_view bytes) {
  for (const char c : bytes) g_sum += static_cast<unsigned char>(c);
}

void TouchMetadata(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    if (file.Find(key) != &value) std::abort();
    if (const auto v = file.GetUint(key); v.ok()) g_sum += *v;
    if (const auto v = file.GetDouble(key); v.ok()) g_sum += *v > 0;
    if (const auto v = file.GetBool(key); v.ok()) g_sum += *v;
    if (const auto v = file.GetString(key); v.ok()) TouchBytes(*v);
    if (const auto v = file.GetInts(key); v.ok()) g_sum += v->size();
    if (const auto v = file.GetDoubles(key); v.ok()) g_sum += v->size();
    const auto texts = file.GetStrings(key);
    if (!texts.ok()) continue;
    for (const std::string_view text : *texts) TouchBytes(text);
  }
}

void TouchTensors(const GgufFile& file) {
  constexpr uint64_t kRows = 2;
  constexpr uint64_t kMaxColumns = 1 << 16;  // inputs are small, so no real row is longer
  for (const GgufTensor& tensor : file.tensors()) {
    if (file.FindTensor(tensor.name) != &tensor) std::abort();
    const uint64_t columns = tensor.dims[0];
    const uint64_t row_bytes = RowBytes(tensor.type, columns);
    if (tensor.bytes / row_bytes != tensor.dims[1] * tensor.dims[2] * tensor.dims[3]) std::abort();
    TouchBytes({reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes)});
    if (columns > kMaxColumns) continue;
    std::vector<float> values(columns);
    std::vector<int8_t> codes(columns);
    std::vector<float> scales(columns / 16);
    std::vector<float> mins(columns / 16);
    for (uint64_t row = 0; row < std::min(kRows, tensor.dims[1]); ++row) {
      const uint8_t* src = tensor.data + row * row_bytes;
      DecodeRow(tensor.type, src, static_cast<int64_t>(columns), values.data());
      if (IsFloat(tensor.type)) continue;
      UnpackCodes(tensor.type, src, 0, static_cast<int64_t>(columns / kGroup), codes.data(), scales.data(),
                  mins.data());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = GgufFile::Parse({data, size}, "fuzz.gguf");
  if (!file.ok()) {
    const Status& status = file.status();
    const bool known = status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported ||
                       status.code() == StatusCode::kInvalidArgument;
    if (!known || status.message().empty() || status.message().size() > 2000 || status.file() != "fuzz.gguf")
      std::abort();
    return 0;
  }
  TouchMetadata(**file);
  TouchTensors(**file);
  return 0;
}
