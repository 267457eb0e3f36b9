// What K/V pages depend on, apart from token ids: weights, positions, numerics, format. May depend on: base … model.
// Next for the token: kvcache/store.h keeps pages of one fingerprint in one file.
#pragma once

#include <array>
#include <string>

#include "base/fs.h"
#include "base/status.h"
#include "gguf/gguf.h"
#include "kvcache/layout.h"
#include "model/config.h"

namespace kvart {

using Digest = std::array<uint8_t, 32>;

// Rises whenever a change of kernels or decoder changes any bit of K/V. All instruction sets give the same bits, so
// none is named.
constexpr int kNumericsRevision = 4;

// SHA-256 over all tensors: name, type, shape, bytes. Takes seconds, so it is kept in directory/weights/ under the
// file's path, size, time of change and inode, and read from there next time; an empty directory keeps nothing.
Result<Digest> HashWeights(const GgufFile& file, const std::string& directory);

// What a page's bytes depend on in words: for messages, and hashed with the weights into the fingerprint.
std::string DescribeNumerics(const ModelConfig& config, bool float_activations, const KvGeometry& geometry,
                             int64_t window);
Digest Fingerprint(const Digest& weights, const std::string& numerics);

}  // namespace kvart
