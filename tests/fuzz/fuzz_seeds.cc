// Writes the seeds of the GGUF fuzzer: small right files that between them hold every value type and tensor type.
// Usage: fuzz_seeds DIRECTORY.
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"

namespace {

using kvart::DType;
using kvart::testing::GgufWriter;

GgufWriter Values(uint32_t version) {
  GgufWriter w;
  w.version = version;
  w.Alignment(64);
  w.Uint8("u8", 1);
  w.Int8("i8", -1);
  w.Uint16("u16", 2);
  w.Int16("i16", -2);
  w.Int32("i32", -3);
  w.Float32("f32", 0.5f);
  w.Bool("bool", true);
  w.Uint64("u64", 4);
  w.Int64("i64", -4);
  w.Float64("f64", 0.25);
  w.String("general.architecture", "qwen2");
  w.Strings("tokens", {"a", "", "bc"});
  w.Array<float>("scores", 6, {1.0f, 2.0f});
  w.Array<uint8_t>("flags", 7, {0, 1});
  w.Array<int32_t>("ids", 5, {7, -7});
  w.Tensor("w", {2, 2}, {1.0f, 2.0f, 3.0f, 4.0f});
  return w;
}

GgufWriter Tensors() {
  GgufWriter w;
  for (uint32_t id = 0; id < 64; ++id) {
    const kvart::DTypeInfo* info = kvart::FindDType(id);
    if (info == nullptr) continue;
    const auto n = static_cast<uint64_t>(info->block_values);
    w.Tensor(std::string(info->name), info->type, {n, 1}, std::vector<uint8_t>(kvart::RowBytes(info->type, n), 0x35));
  }
  return w;
}

GgufWriter Part() {
  GgufWriter w;
  w.Uint16("split.no", 0);
  w.Uint16("split.count", 2);
  w.Int32("split.tensors.count", 1);
  return w;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string dir = argv[1];
  const bool ok = Values(2).Write(dir + "/values_v2") && Values(3).Write(dir + "/values_v3") &&
                  Tensors().Write(dir + "/tensors") && Part().Write(dir + "/part") &&
                  GgufWriter().Write(dir + "/empty");
  return ok ? 0 : 1;
}
