#include "engine/fingerprint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/hash.h"

namespace kvart {
namespace {

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// What tells a changed file from an unchanged one without reading it. Empty when the system does not say.
std::string Identity(const GgufFile& file) {
  struct stat info {};
  if (stat(file.path().c_str(), &info) != 0) return "";
  return file.path() + "|" + std::to_string(info.st_size) + "|" + std::to_string(info.st_mtim.tv_sec) + "." +
         std::to_string(info.st_mtim.tv_nsec) + "|" + std::to_string(info.st_ino) + "|" +
         std::to_string(file.file_bytes());
}

std::string Hex(const Digest& digest) {
  std::string hex;
  for (const uint8_t byte : digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Digest HashTensors(const GgufFile& file) {
  Sha256 hash;
  for (const GgufTensor& tensor : file.tensors()) {
    hash.Update(tensor.name.data(), tensor.name.size() + 1);
    hash.Update(&tensor.type, sizeof tensor.type);
    hash.Update(tensor.dims, sizeof tensor.dims);
    constexpr uint64_t kStrip = uint64_t{8} << 20;
    for (uint64_t at = 0; at < tensor.bytes;
         at += kStrip) {  // in strips that are let go of again: weights need no second place in memory
      const size_t n = static_cast<size_t>(std::min(kStrip, tensor.bytes - at));
      hash.Update(tensor.data + at, n);
      if (const Mapping* mapping = file.MappingOf(tensor)) mapping->Drop(tensor.data + at, n);
    }
  }
  return hash.Finish();
}

}  // namespace

Result<Digest> HashWeights(const GgufFile& file, const std::string& directory) {
  const std::string identity = directory.empty() ? "" : Identity(file);
  if (identity.empty()) return HashTensors(file);
  const std::string folder = directory + "/weights";
  const std::string path = folder + "/" + Hex(Sha256::Of(identity.data(), identity.size())).substr(0, 32);
  Digest digest{};
  if (const File known{std::fopen(path.c_str(), "rbe")}) {
    std::array<uint8_t, 64> bytes{};  // the digest, and its own digest: a torn file is not believed
    if (std::fread(bytes.data(), 1, bytes.size(), known.get()) == bytes.size()) {
      Digest check{};
      std::copy_n(bytes.begin(), 32, digest.begin());
      std::copy_n(bytes.begin() + 32, 32, check.begin());
      if (Sha256::Of(digest.data(), digest.size()) == check) return digest;
    }
  }
  digest = HashTensors(file);
  // Keeping it is a convenience: a directory that cannot be written to costs time at the next start, nothing else.
  mkdir(directory.c_str(), 0700);
  mkdir(folder.c_str(), 0700);
  const std::string fresh = path + "." + std::to_string(getpid());
  File out{std::fopen(fresh.c_str(), "wbe")};
  if (out == nullptr) return digest;
  const Digest check = Sha256::Of(digest.data(), digest.size());
  const bool written =
      std::fwrite(digest.data(), 1, 32, out.get()) == 32 && std::fwrite(check.data(), 1, 32, out.get()) == 32;
  const bool closed = std::fclose(out.release()) == 0;
  if (!written || !closed || std::rename(fresh.c_str(), path.c_str()) != 0) std::remove(fresh.c_str());
  return digest;
}

std::string DescribeNumerics(const ModelConfig& c, bool float_activations, const KvGeometry& geometry, int64_t window) {
  char rope[256];
  std::snprintf(rope, sizeof rope, "rope %s base %.9g factor %.9g original %.9g attention %.9g beta %.9g %.9g",
                RopeScalingName(c.rope.scaling), c.rope.base, c.rope.factor, c.rope.original_ctx, c.rope.attn_factor,
                c.rope.beta_fast, c.rope.beta_slow);
  char shape[256];
  std::snprintf(shape, sizeof shape, "; %s heads %d embd %d ff %d eps %.9g; ", c.architecture.c_str(), c.n_heads,
                c.n_embd, c.n_ff, static_cast<double>(c.norm_eps));
  std::string text = std::string(rope) + shape + geometry.ToString() + "; activations " +
                     (float_activations ? "f32" : "int8") + "; numerics revision " + std::to_string(kNumericsRevision);
  if (window > 0) text += "; window " + std::to_string(window);
  return text;
}

Digest Fingerprint(const Digest& weights, const std::string& numerics) {
  Sha256 hash;
  hash.Update(weights.data(), weights.size());
  hash.Update(numerics.data(), numerics.size());
  return hash.Finish();
}

}  // namespace kvart
