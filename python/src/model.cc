// Binding of the engine's Model.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings.h"

namespace kvart::python {

py::dict StatsDict(const Stats& stats) {
  py::dict dict;
  dict["prefill_tokens"] = stats.prefill_tokens;
  dict["decode_tokens"] = stats.decode_tokens;
  dict["prefill_seconds"] = stats.prefill_seconds;
  dict["decode_seconds"] = stats.decode_seconds;
  dict["computed_positions"] = stats.computed_positions;
  dict["recomputed_positions"] = stats.recomputed_positions;
  dict["reused_positions"] = stats.reused_positions;
  dict["drafted_tokens"] = stats.drafted_tokens;
  dict["accepted_tokens"] = stats.accepted_tokens;
  dict["kv_bytes"] = stats.kv_bytes;
  dict["kv_used_bytes"] = stats.kv_used_bytes;
  dict["kv_budget_bytes"] = stats.kv_budget_bytes;
  dict["store_lookups"] = stats.store_lookups;
  dict["store_hits"] = stats.store_hits;
  dict["pool_requests"] = stats.pool_requests;
  dict["pool_hits"] = stats.pool_hits;
  dict["evictions"] = stats.evictions;
  dict["damaged_pages"] = stats.damaged_pages;
  dict["store_writable"] = stats.store_writable;
  dict["bits_per_value"] = stats.bits_per_value;
  dict["load_seconds"] = stats.load_seconds;
  dict["logits_hash"] = stats.logits_hash;
  return dict;
}

namespace {

// Python's reference to a model: it ends as Own says, which the model's own
// count, shared with its sessions, could not know.
struct ModelHandle {
  std::shared_ptr<Model> model;
};

std::shared_ptr<ModelHandle> Load(const std::string& path, int n_threads, const std::vector<int>& cpus,
                                  const std::string& backend, bool float_activations, const std::string& kv_dir,
                                  uint64_t kv_budget_bytes, bool record_inputs, py::object callback) {
  PyProgress progress(std::move(callback));
  LoadOptions options;
  options.n_threads = n_threads;
  options.cpus = cpus;
  options.backend = backend;
  options.float_activations = float_activations;
  options.kv_dir = kv_dir;
  options.kv_budget_bytes = kv_budget_bytes;
  options.record_inputs = record_inputs;
  options.progress = progress.Get();
  auto loaded = Unlocked([&] { return Model::Load(path, options); });
  progress.Rethrow();
  return Own(std::make_unique<ModelHandle>(ModelHandle{Take(std::move(loaded))}));
}

py::array_t<float> Logits(const ModelHandle& handle, const std::vector<int32_t>& ids, const SessionOptions& options,
                          py::object callback) {
  Model& model = *handle.model;
  py::array_t<float> out({static_cast<py::ssize_t>(ids.size()), static_cast<py::ssize_t>(model.info().n_vocab)});
  PyProgress progress(std::move(callback));
  const Status status =
      Unlocked([&, data = out.mutable_data()] { return model.Logits(ids, options, data, progress.Get()); });
  progress.Rethrow();
  Check(status);
  return out;
}

py::dict InputSquaresDict(const ModelHandle& handle) {
  py::dict dict;
  for (const InputSquares& inputs : Unlocked([&] { return handle.model->input_squares(); })) {
    const py::array_t<double> sums(static_cast<py::ssize_t>(inputs.sums.size()), inputs.sums.data());
    dict[Text(inputs.matrix)] = py::make_tuple(sums, inputs.rows);
  }
  return dict;
}

}  // namespace

void BindModel(py::module_& module) {
  py::class_<ModelInfo>(module, "ModelInfo", "What a model file says of itself, and how it was loaded.")
      .def_readonly("name", &ModelInfo::name)
      .def_readonly("architecture", &ModelInfo::architecture)
      .def_readonly("path", &ModelInfo::path)
      .def_readonly("file_bytes", &ModelInfo::file_bytes)
      .def_readonly("n_layers", &ModelInfo::n_layers)
      .def_readonly("n_embd", &ModelInfo::n_embd)
      .def_readonly("n_heads", &ModelInfo::n_heads)
      .def_readonly("n_kv_heads", &ModelInfo::n_kv_heads)
      .def_readonly("head_dim", &ModelInfo::head_dim)
      .def_readonly("n_ff", &ModelInfo::n_ff)
      .def_readonly("n_vocab", &ModelInfo::n_vocab)
      .def_readonly("n_ctx_train", &ModelInfo::n_ctx_train)
      .def_readonly("rope_base", &ModelInfo::rope_base)
      .def_readonly("rope_scaling", &ModelInfo::rope_scaling)
      .def_readonly("tied_head", &ModelInfo::tied_head)
      .def_readonly("weight_bytes_per_token", &ModelInfo::weight_bytes_per_token)
      .def_readonly("kernels", &ModelInfo::kernels)
      .def_readonly("backend", &ModelInfo::backend)
      .def_readonly("n_threads", &ModelInfo::n_threads)
      .def_readonly("n_running", &ModelInfo::n_running);

  py::enum_<KvLayout>(module, "KvLayout").value("PAGED", KvLayout::kPaged).value("CONTIGUOUS", KvLayout::kContiguous);

  const SessionOptions defaults;
  py::class_<SessionOptions>(module, "SessionOptions")
      .def(py::init([](std::string k_format, std::string v_format, int sinks, KvLayout layout, int64_t ctx, bool cache,
                       int chunk, std::string name, int64_t window, bool in_memory, int64_t draft) {
             SessionOptions options;
             options.k_format = std::move(k_format);
             options.v_format = std::move(v_format);
             options.sinks = sinks;
             options.layout = layout;
             options.ctx = ctx;
             options.cache = cache;
             options.chunk = chunk;
             options.name = std::move(name);
             options.window = window;
             options.in_memory = in_memory;
             options.draft = draft;
             return options;
           }),
           py::kw_only(), py::arg("k_format") = defaults.k_format, py::arg("v_format") = defaults.v_format,
           py::arg("sinks") = defaults.sinks, py::arg("layout") = defaults.layout, py::arg("ctx") = defaults.ctx,
           py::arg("cache") = defaults.cache, py::arg("chunk") = defaults.chunk, py::arg("name") = defaults.name,
           py::arg("window") = defaults.window, py::arg("in_memory") = defaults.in_memory,
           py::arg("draft") = defaults.draft)
      .def_readonly("k_format", &SessionOptions::k_format)
      .def_readonly("v_format", &SessionOptions::v_format)
      .def_readonly("sinks", &SessionOptions::sinks)
      .def_readonly("layout", &SessionOptions::layout)
      .def_readonly("ctx", &SessionOptions::ctx)
      .def_readonly("cache", &SessionOptions::cache)
      .def_readonly("chunk", &SessionOptions::chunk)
      .def_readonly("name", &SessionOptions::name)
      .def_readonly("window", &SessionOptions::window)
      .def_readonly("in_memory", &SessionOptions::in_memory)
      .def_readonly("draft", &SessionOptions::draft);

  py::class_<ModelHandle, std::shared_ptr<ModelHandle>>(
      module, "Model", "A loaded model. Calls from several threads wait for each other.")
      .def(py::init(&Load), py::arg("path"), py::kw_only(), py::arg("n_threads") = 0,
           py::arg("cpus") = std::vector<int>(), py::arg("backend") = "cpu", py::arg("float_activations") = false,
           py::arg("kv_dir") = "", py::arg("kv_budget_bytes") = 0, py::arg("record_inputs") = false,
           py::arg("progress") = py::none())
      .def_property_readonly("info", [](const ModelHandle& handle) { return handle.model->info(); })
      .def_property_readonly("tokenizer",
                             [](const std::shared_ptr<ModelHandle>& handle) {
                               return std::shared_ptr<Tokenizer>(handle,
                                                                 const_cast<Tokenizer*>(&handle->model->tokenizer()));
                             })
      .def_property_readonly("file",
                             [](const std::shared_ptr<ModelHandle>& handle) {
                               return std::shared_ptr<GgufFile>(handle, const_cast<GgufFile*>(&handle->model->file()));
                             })
      .def(
          "session",
          [](const ModelHandle& handle, const SessionOptions& options) {
            return Own(Take(Unlocked([&] { return handle.model->NewSession(options); })));
          },
          py::arg("options"))
      .def(
          "load_session",
          [](const ModelHandle& handle, const std::string& path, const SessionOptions& options) {
            return Own(Take(Unlocked([&] { return handle.model->LoadSession(path, options); })));
          },
          py::arg("path"), py::arg("options"))
      .def("logits", &Logits, py::arg("ids"), py::arg("options"), py::arg("progress") = py::none())
      .def("input_squares", &InputSquaresDict,
           "{tensor: (sums of squares of each column of what it was multiplied with, how many inputs)}; empty unless\n"
           "the model was loaded with record_inputs.")
      .def("stats",
           [](const ModelHandle& handle) { return StatsDict(Unlocked([&] { return handle.model->stats(); })); });
}

}  // namespace kvart::python
