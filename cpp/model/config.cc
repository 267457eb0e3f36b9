#include "model/config.h"

#include <cmath>

namespace kvart {
namespace {

// Reads <arch>.<name> keys into fields, remembering the first failure, so that the list below stays a list.
class Reader {
 public:
  Reader(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

  template <class T>
  void Count(const char* name, T* out, uint64_t min, uint64_t max) {
    if (!status_.ok()) return;
    auto value = file_.GetUint(prefix_ + name);
    if (!value.ok()) {
      status_ = value.status();
    } else if (*value < min || *value > max) {
      Refuse(name, std::to_string(*value), std::to_string(min) + " … " + std::to_string(max));
    } else {
      *out = static_cast<T>(*value);
    }
  }

  bool Has(const char* name) const { return file_.Find(prefix_ + name) != nullptr; }

  // A finite number above zero.
  template <class T>
  void Positive(const char* name, T* out) {
    if (!status_.ok()) return;
    auto value = file_.GetDouble(prefix_ + name);
    if (!value.ok()) {
      status_ = value.status();
    } else if (!std::isfinite(*value) || *value <= 0) {
      Refuse(name, std::to_string(*value), "a finite number above 0");
    } else {
      *out = static_cast<T>(*value);
    }
  }
  template <class T>
  void PositiveIfPresent(const char* name, T* out) {
    if (Has(name)) Positive(name, out);
  }

  void Refuse(const char* name, const std::string& found, const std::string& wanted) {
    if (!status_.ok()) return;
    status_ = Status(StatusCode::kCorrupt, file_.path() + ": " + prefix_ + name + " is " + found + "; wanted " + wanted,
                     file_.path());
  }

  const GgufFile& file_;
  const std::string prefix_;
  Status status_;
};

void ReadRope(Reader& r, ModelConfig* c) {
  RopeConfig& rope = c->rope;
  r.PositiveIfPresent("rope.freq_base", &rope.base);
  std::string type;
  if (r.Has("rope.scaling.type")) {
    auto value = r.file_.GetString(r.prefix_ + "rope.scaling.type");
    if (!value.ok()) {
      if (r.status_.ok()) r.status_ = value.status();
      return;
    }
    type = *value;
  } else if (r.Has("rope.scale_linear")) {  // files from before rope.scaling.*
    type = "linear";
    r.Positive("rope.scale_linear", &rope.factor);
  }
  r.PositiveIfPresent("rope.scaling.factor", &rope.factor);
  rope.original_ctx = static_cast<double>(c->n_ctx_train);
  r.PositiveIfPresent("rope.scaling.original_context_length", &rope.original_ctx);
  r.PositiveIfPresent("rope.scaling.attn_factor", &rope.attn_factor);
  r.PositiveIfPresent("rope.scaling.yarn_beta_fast", &rope.beta_fast);
  r.PositiveIfPresent("rope.scaling.yarn_beta_slow", &rope.beta_slow);

  if (type.empty() || type == "none")
    rope.scaling = RopeScaling::kNone;
  else if (type == "linear")
    rope.scaling = RopeScaling::kLinear;
  else if (type == "ntk")
    rope.scaling = RopeScaling::kNtk;
  else if (type == "yarn")
    rope.scaling = RopeScaling::kYarn;
  else
    r.Refuse("rope.scaling.type", "'" + type.substr(0, 64) + "'", "none, linear, ntk or yarn");

  uint64_t rotated = static_cast<uint64_t>(c->head_dim);
  if (r.Has("rope.dimension_count")) r.Count("rope.dimension_count", &rotated, 1, 1 << 20);
  if (rotated != static_cast<uint64_t>(c->head_dim)) {
    r.Refuse("rope.dimension_count", std::to_string(rotated), "head_dim, " + std::to_string(c->head_dim));
  }
}

}  // namespace

const char* RopeScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kNtk: return "ntk";
    case RopeScaling::kYarn: return "yarn";
  }
  return "?";
}

Result<ModelConfig> ReadConfig(const GgufFile& file) {
  ModelConfig c;
  KVART_ASSIGN_OR_RETURN(c.architecture, file.GetString("general.architecture"));
  if (c.architecture != "qwen2" && c.architecture != "qwen3") {
    return Status(StatusCode::kUnsupported,
                  file.path() + ": architecture '" + c.architecture.substr(0, 64) + "'; kvart runs qwen2 and qwen3",
                  file.path());
  }
  Reader r(file, c.architecture);
  r.Count("block_count", &c.n_layers, 1, 1024);
  r.Count("embedding_length", &c.n_embd, 32, 1 << 20);
  r.Count("feed_forward_length", &c.n_ff, 32, 1 << 24);
  r.Count("attention.head_count", &c.n_heads, 1, 4096);
  c.n_kv_heads = c.n_heads;
  if (r.Has("attention.head_count_kv")) r.Count("attention.head_count_kv", &c.n_kv_heads, 1, 4096);
  r.Count("context_length", &c.n_ctx_train, 1, uint64_t{1} << 31);
  r.Positive("attention.layer_norm_rms_epsilon", &c.norm_eps);
  if (!r.status_.ok()) return r.status_;

  if (c.n_heads % c.n_kv_heads != 0) {
    r.Refuse("attention.head_count_kv", std::to_string(c.n_kv_heads),
             "a divisor of head_count, " + std::to_string(c.n_heads));
  }
  c.head_dim = c.n_embd / c.n_heads;
  if (r.Has("attention.key_length"))
    r.Count("attention.key_length", &c.head_dim, 8, 1024);
  else if (c.n_embd % c.n_heads != 0)
    r.Refuse("attention.head_count", std::to_string(c.n_heads), "a divisor of embedding_length");
  int value_length = c.head_dim;
  if (r.Has("attention.value_length")) r.Count("attention.value_length", &value_length, 8, 1024);
  if (value_length != c.head_dim)
    r.Refuse("attention.value_length", std::to_string(value_length), "key_length, " + std::to_string(c.head_dim));
  if (c.head_dim % 8 != 0 || c.head_dim > 1024)
    r.Refuse("attention.key_length", std::to_string(c.head_dim), "a multiple of 8 up to 1024");
  if (c.n_embd % 32 != 0) r.Refuse("embedding_length", std::to_string(c.n_embd), "a multiple of 32");
  if (c.n_ff % 32 != 0) r.Refuse("feed_forward_length", std::to_string(c.n_ff), "a multiple of 32");
  ReadRope(r, &c);
  if (!r.status_.ok()) return r.status_;

  const GgufTensor* table = file.FindTensor("token_embd.weight");
  if (table == nullptr)
    return Status(StatusCode::kCorrupt, file.path() + ": tensor token_embd.weight is missing", file.path());
  if (table->dims[1] > (uint64_t{1} << 24)) {
    return Errorf(StatusCode::kCorrupt, "%s: token_embd.weight has %llu rows; at most 2^24 are expected",
                  file.path().c_str(), static_cast<unsigned long long>(table->dims[1]));
  }
  c.n_vocab = static_cast<int32_t>(table->dims[1]);
  return c;
}

}  // namespace kvart
