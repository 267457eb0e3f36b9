// Binding of the sampler.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings.h"

namespace kvart::python {

void BindSampler(py::module_& module) {
  const SamplerOptions defaults;
  py::class_<Sampler>(module, "Sampler", "Draws tokens. Holds the random state: one thread at a time.")
      .def(py::init([](int32_t n_vocab, float temperature, int top_k, float top_p, float min_p,
                       float repetition_penalty, float presence_penalty, float frequency_penalty, int penalty_window,
                       std::vector<std::pair<int32_t, float>> logit_bias, uint64_t seed) {
             SamplerOptions options;
             options.temperature = temperature;
             options.top_k = top_k;
             options.top_p = top_p;
             options.min_p = min_p;
             options.repetition_penalty = repetition_penalty;
             options.presence_penalty = presence_penalty;
             options.frequency_penalty = frequency_penalty;
             options.penalty_window = penalty_window;
             options.logit_bias = std::move(logit_bias);
             options.seed = seed;
             Check(CheckSamplerOptions(options, n_vocab));
             return std::make_unique<Sampler>(std::move(options));
           }),
           py::arg("n_vocab"), py::kw_only(), py::arg("temperature") = defaults.temperature,
           py::arg("top_k") = defaults.top_k, py::arg("top_p") = defaults.top_p, py::arg("min_p") = defaults.min_p,
           py::arg("repetition_penalty") = defaults.repetition_penalty,
           py::arg("presence_penalty") = defaults.presence_penalty,
           py::arg("frequency_penalty") = defaults.frequency_penalty,
           py::arg("penalty_window") = defaults.penalty_window, py::arg("logit_bias") = defaults.logit_bias,
           py::arg("seed") = defaults.seed)
      .def(
          "sample",
          [](Sampler& sampler, const py::array_t<float, py::array::c_style | py::array::forcecast>& logits,
             const std::vector<int32_t>& history) {
            if (logits.ndim() != 1 || logits.size() == 0) {
              Raise(Errorf(StatusCode::kInvalidArgument,
                           "sample: expected logits of shape (n_vocab,), found %d dimensions",
                           static_cast<int>(logits.ndim())));
            }
            const std::span<const float> row(logits.data(), static_cast<size_t>(logits.size()));
            return Unlocked([&] { return sampler.Sample(row, history); });
          },
          py::arg("logits"), py::arg("history") = std::vector<int32_t>());
}

}  // namespace kvart::python
