// A tiny random Qwen model as GGUF bytes, for tests of decoder and engine. May depend on: quant, tests/cpp/gguf.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"
#include "quant/quant.h"

namespace kvart::testing {

struct TinyOptions {
  std::string architecture = "qwen2";
  uint32_t layers = 2, embd = 64, heads = 4, kv_heads = 2, head_dim = 16, ff = 96, vocab = 288, ctx = 1024;
  DType type = DType::kF32;  // of the matrices: F32, F16 or a type that EncodeRow writes
  bool tied = false;
  float key_bias = 0;  // size of the spikes in the key biases
  uint32_t seed = 1;
};

inline std::string TinyByteToken(int byte) {  // GPT-2's printable stand-ins for bytes
  const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  int code = byte;
  if (!printable) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
  }
  std::string utf8;
  if (code < 128) return std::string(1, static_cast<char>(code));
  utf8 += static_cast<char>(0xc0 | (code >> 6));
  utf8 += static_cast<char>(0x80 | (code & 63));
  return utf8;
}

// The writer, before Build, so that a test may spoil it.
inline GgufWriter TinyModel(const TinyOptions& o) {
  GgufWriter w;
  const std::string p = o.architecture + ".";
  w.String("general.architecture", o.architecture);
  w.String("general.name", "tiny");
  w.Uint32(p + "block_count", o.layers);
  w.Uint32(p + "context_length", o.ctx);
  w.Uint32(p + "embedding_length", o.embd);
  w.Uint32(p + "feed_forward_length", o.ff);
  w.Uint32(p + "attention.head_count", o.heads);
  w.Uint32(p + "attention.head_count_kv", o.kv_heads);
  w.Uint32(p + "attention.key_length", o.head_dim);
  w.Uint32(p + "attention.value_length", o.head_dim);
  w.Float32(p + "attention.layer_norm_rms_epsilon", 1e-6f);
  w.Float32(p + "rope.freq_base", 10000.0f);

  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int b = 0; b < 256; ++b) tokens.push_back(TinyByteToken(b)), types.push_back(1);
  for (const char* merge : {"th", "he", "in"}) tokens.push_back(merge), types.push_back(1);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
    tokens.push_back(special), types.push_back(3);
  const uint32_t eos = static_cast<uint32_t>(tokens.size()) - 1;
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "qwen2");
  w.Strings("tokenizer.ggml.tokens", tokens);
  w.Array("tokenizer.ggml.token_type", 5, types);
  w.Strings("tokenizer.ggml.merges", {"t h", "h e", "i n"});
  w.Uint32("tokenizer.ggml.eos_token_id", eos);

  std::mt19937 rng(o.seed);
  std::normal_distribution<float> normal;
  const auto values = [&](uint64_t n, float scale, float mean = 0) {
    std::vector<float> v(n);
    for (float& x : v) x = mean + normal(rng) * scale;
    return v;
  };
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    const std::vector<float> v = values(rows * cols, 1.0f / std::sqrt(static_cast<float>(cols)));
    std::vector<uint8_t> bytes(rows * RowBytes(o.type, cols));
    (void)EncodeRow(o.type, v.data(), static_cast<int64_t>(v.size()), bytes.data());
    w.Tensor(name, o.type, {cols, rows}, bytes);
  };
  const auto vector = [&](const std::string& name, std::vector<float> v) {
    const uint64_t n = v.size();
    w.Tensor(name, {n}, std::move(v));
  };
  matrix("token_embd.weight", o.vocab, o.embd);
  if (!o.tied) matrix("output.weight", o.vocab, o.embd);
  vector("output_norm.weight", values(o.embd, 0.1f, 1));
  const uint64_t q_rows = uint64_t{o.heads} * o.head_dim, kv_rows = uint64_t{o.kv_heads} * o.head_dim;
  for (uint32_t i = 0; i < o.layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    vector(b + "attn_norm.weight", values(o.embd, 0.1f, 1));
    matrix(b + "attn_q.weight", q_rows, o.embd);
    matrix(b + "attn_k.weight", kv_rows, o.embd);
    matrix(b + "attn_v.weight", kv_rows, o.embd);
    matrix(b + "attn_output.weight", o.embd, q_rows);
    if (o.architecture == "qwen2") {
      vector(b + "attn_q.bias", values(q_rows, 0.1f));
      std::vector<float> k_bias = values(kv_rows, 0.1f);
      for (uint64_t c = o.head_dim / 2 - 1; c < kv_rows; c += o.head_dim / 2)
        k_bias[c] += o.key_bias;  // the slowest pairs
      vector(b + "attn_k.bias", k_bias);
      vector(b + "attn_v.bias", values(kv_rows, 0.1f));
    } else {
      vector(b + "attn_q_norm.weight", values(o.head_dim, 0.1f, 1));
      vector(b + "attn_k_norm.weight", values(o.head_dim, 0.1f, 1));
    }
    vector(b + "ffn_norm.weight", values(o.embd, 0.1f, 1));
    matrix(b + "ffn_gate.weight", o.ff, o.embd);
    matrix(b + "ffn_up.weight", o.ff, o.embd);
    matrix(b + "ffn_down.weight", o.embd, o.ff);
  }
  return w;
}

}  // namespace kvart::testing
