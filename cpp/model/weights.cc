#include "model/weights.h"

#include <utility>

#include "quant/quant.h"

namespace kvart {
namespace {

std::string Shape(uint64_t rows, uint64_t cols) {
  return "(" + std::to_string(rows) + ", " + std::to_string(cols) + ")";
}

class Loader {
 public:
  Loader(const GgufFile& file, Backend& backend, const std::function<bool(double)>& progress, ModelWeights* out)
      : file_(file), backend_(backend), progress_(progress), out_(out) {}

  // A tensor of this name and shape. Vectors have one row.
  Result<const GgufTensor*> Find(const std::string& name, int64_t rows, int64_t cols) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr)
      return Status(StatusCode::kCorrupt, file_.path() + ": tensor " + name + " is missing", file_.path());
    const bool fits = tensor->dims[0] == static_cast<uint64_t>(cols) &&
                      tensor->dims[1] == static_cast<uint64_t>(rows) && tensor->dims[2] == 1 && tensor->dims[3] == 1;
    if (!fits) {
      return Status(StatusCode::kCorrupt,
                    file_.path() + ": tensor " + name + " has shape " + Shape(tensor->dims[1], tensor->dims[0]) +
                        "; wanted " + Shape(static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)),
                    file_.path());
    }
    return tensor;
  }

  Status Load(const std::string& name, int64_t rows, int64_t cols, MatrixUse use, std::unique_ptr<Matrix>* matrix) {
    KVART_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, rows, cols));
    KVART_ASSIGN_OR_RETURN(*matrix, backend_.LoadMatrix(file_, *tensor, use));
    return Done(tensor->bytes);
  }

  Status Load(const std::string& name, int64_t n, Address* vector) {
    KVART_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, 1, n));
    std::vector<float> values(static_cast<size_t>(n));
    DecodeRow(tensor->type, tensor->data, n, values.data());
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(backend_.memory(), values.size() * sizeof(float)));
    KVART_RETURN_IF_ERROR(backend_.memory().Write(block.address(), values.data(), values.size() * sizeof(float)));
    *vector = block.address();
    out_->vectors.push_back(std::move(block));
    return Done(tensor->bytes);
  }

  Status LoadIfPresent(const std::string& name, int64_t n, Address* vector) {
    return file_.FindTensor(name) != nullptr ? Load(name, n, vector) : Status::Ok();
  }

 private:
  Status Done(uint64_t bytes) {
    done_ += bytes;
    if (progress_ && !progress_(static_cast<double>(done_) / static_cast<double>(file_.file_bytes()))) {
      return Status(StatusCode::kCancelled, "loading " + file_.path() + " was cancelled");
    }
    return Status::Ok();
  }

  const GgufFile& file_;
  Backend& backend_;
  const std::function<bool(double)>& progress_;
  ModelWeights* out_;
  uint64_t done_ = 0;
};

Status LoadLayer(Loader& loader, const ModelConfig& c, int index, LayerWeights* layer) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t q_rows = int64_t{c.n_heads} * c.head_dim, kv_rows = int64_t{c.n_kv_heads} * c.head_dim;
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols, std::unique_ptr<Matrix>* out) {
    return loader.Load(prefix + name + ".weight", rows, cols, MatrixUse::kMultiply, out);
  };
  AttentionWeights& a = layer->attention;
  KVART_RETURN_IF_ERROR(loader.Load(prefix + "attn_norm.weight", c.n_embd, &a.norm));
  KVART_RETURN_IF_ERROR(matrix("attn_q", q_rows, c.n_embd, &a.q));
  KVART_RETURN_IF_ERROR(matrix("attn_k", kv_rows, c.n_embd, &a.k));
  KVART_RETURN_IF_ERROR(matrix("attn_v", kv_rows, c.n_embd, &a.v));
  KVART_RETURN_IF_ERROR(matrix("attn_output", c.n_embd, q_rows, &a.out));
  // qwen2 has biases and no norms, qwen3 the reverse; what the architecture needs is wanted, the rest is taken when
  // there.
  const bool biases = c.architecture == "qwen2";
  const auto vector = [&](bool wanted, const char* name, int64_t n, Address* out) {
    return wanted ? loader.Load(prefix + name, n, out) : loader.LoadIfPresent(prefix + name, n, out);
  };
  KVART_RETURN_IF_ERROR(vector(biases, "attn_q.bias", q_rows, &a.q_bias));
  KVART_RETURN_IF_ERROR(vector(biases, "attn_k.bias", kv_rows, &a.k_bias));
  KVART_RETURN_IF_ERROR(vector(biases, "attn_v.bias", kv_rows, &a.v_bias));
  KVART_RETURN_IF_ERROR(vector(false, "attn_output.bias", c.n_embd, &a.out_bias));
  KVART_RETURN_IF_ERROR(vector(!biases, "attn_q_norm.weight", c.head_dim, &a.q_norm));
  KVART_RETURN_IF_ERROR(vector(!biases, "attn_k_norm.weight", c.head_dim, &a.k_norm));

  MlpWeights& m = layer->mlp;
  KVART_RETURN_IF_ERROR(loader.Load(prefix + "ffn_norm.weight", c.n_embd, &m.norm));
  KVART_RETURN_IF_ERROR(matrix("ffn_gate", c.n_ff, c.n_embd, &m.gate));
  KVART_RETURN_IF_ERROR(matrix("ffn_up", c.n_ff, c.n_embd, &m.up));
  return matrix("ffn_down", c.n_embd, c.n_ff, &m.down);
}

}  // namespace

uint64_t ModelWeights::BytesPerToken() const {
  uint64_t bytes = head->bytes();
  for (const LayerWeights& layer : layers) {
    const AttentionWeights& a = layer.attention;
    const MlpWeights& m = layer.mlp;
    for (const auto* matrix : {&a.q, &a.k, &a.v, &a.out, &m.gate, &m.up, &m.down}) bytes += (*matrix)->bytes();
  }
  return bytes;
}

Result<ModelWeights> LoadWeights(const GgufFile& file, const ModelConfig& c, Backend& backend,
                                 const std::function<bool(double)>& progress) {
  ModelWeights w;
  Loader loader(file, backend, progress, &w);
  KVART_RETURN_IF_ERROR(loader.Load("token_embd.weight", c.n_vocab, c.n_embd, MatrixUse::kTable, &w.embedding));
  w.layers.resize(static_cast<size_t>(c.n_layers));
  for (int i = 0; i < c.n_layers; ++i) {
    KVART_RETURN_IF_ERROR(LoadLayer(loader, c, i, &w.layers[static_cast<size_t>(i)]));
  }
  KVART_RETURN_IF_ERROR(loader.Load("output_norm.weight", c.n_embd, &w.final_norm));
  w.tied_head = file.FindTensor("output.weight") == nullptr;
  KVART_RETURN_IF_ERROR(loader.Load(w.tied_head ? "token_embd.weight" : "output.weight", c.n_vocab, c.n_embd,
                                    MatrixUse::kMultiply, &w.head));
  if (progress) (void)progress(1.0);
  return w;
}

}  // namespace kvart
