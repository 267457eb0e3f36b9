// Binding of the GGUF reader: metadata, the list of tensors, the decoder's view of them, and values of tensors.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings.h"
#include "model/config.h"
#include "quant/quant.h"

namespace kvart::python {
namespace {

py::object Text(std::string_view bytes) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

py::object ArrayToPython(const GgufArray& array) {
  return std::visit(
      [](const auto& elements) -> py::object {
        py::list list(elements.size());
        size_t index = 0;
        for (const auto& element : elements) {
          if constexpr (std::is_convertible_v<decltype(element), std::string_view>) {
            list[index++] = Text(element);
          } else {
            list[index++] = py::cast(static_cast<typename std::decay_t<decltype(elements)>::value_type>(element));
          }
        }
        return list;
      },
      array);
}

py::object ValueToPython(const GgufValue& value) {
  return std::visit(
      [](const auto& item) -> py::object {
        using Item = std::decay_t<decltype(item)>;
        if constexpr (std::is_same_v<Item, GgufArray>) {
          return ArrayToPython(item);
        } else if constexpr (std::is_same_v<Item, std::string_view>) {
          return Text(item);
        } else {
          return py::cast(item);
        }
      },
      value);
}

py::dict ConfigDict(const GgufFile& file) {
  const ModelConfig c = Take(ReadConfig(file));
  py::dict dict;
  dict["architecture"] = c.architecture;
  dict["n_layers"] = c.n_layers;
  dict["n_embd"] = c.n_embd;
  dict["n_heads"] = c.n_heads;
  dict["n_kv_heads"] = c.n_kv_heads;
  dict["head_dim"] = c.head_dim;
  dict["n_ff"] = c.n_ff;
  dict["n_vocab"] = c.n_vocab;
  dict["n_ctx_train"] = c.n_ctx_train;
  dict["norm_eps"] = c.norm_eps;
  dict["rope_base"] = c.rope.base;
  dict["rope_scaling"] = RopeScalingName(c.rope.scaling);
  dict["rope_factor"] = c.rope.factor;
  dict["rope_original_ctx"] = c.rope.original_ctx;
  return dict;
}

const GgufTensor& FindTensor(const GgufFile& file, const std::string& name) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    Check(Status(StatusCode::kNotFound, file.path() + ": there is no tensor " + name.substr(0, 64), file.path()));
  }
  return *tensor;
}

// All but the fastest dimension.
int64_t RowCount(const GgufTensor& tensor) {
  return static_cast<int64_t>(tensor.dims[1] * tensor.dims[2] * tensor.dims[3]);
}

void DecodeRows(const GgufTensor& tensor, int64_t start, int64_t stop, float* to) {
  const int64_t cols = static_cast<int64_t>(tensor.dims[0]);
  const uint64_t row_bytes = RowBytes(tensor.type, tensor.dims[0]);
  Unlocked([&] {
    for (int64_t i = start; i < stop; ++i) {
      DecodeRow(tensor.type, tensor.data + static_cast<uint64_t>(i) * row_bytes, cols, to + (i - start) * cols);
    }
    return true;
  });
}

py::array_t<float> Values(const GgufFile& file, const std::string& name) {
  const GgufTensor& tensor = FindTensor(file, name);
  std::vector<py::ssize_t> shape;
  for (int i = tensor.n_dims; i-- > 0;) shape.push_back(static_cast<py::ssize_t>(tensor.dims[i]));
  py::array_t<float> out(shape);
  DecodeRows(tensor, 0, RowCount(tensor), out.mutable_data());
  return out;
}

py::array_t<float> Rows(const GgufFile& file, const std::string& name, int64_t start, int64_t stop) {
  const GgufTensor& tensor = FindTensor(file, name);
  if (start < 0 || stop < start || stop > RowCount(tensor)) {
    Raise(Errorf(StatusCode::kInvalidArgument, "rows of %s: expected a part of 0 … %lld, found %lld … %lld",
                 name.substr(0, 64).c_str(), static_cast<long long>(RowCount(tensor)), static_cast<long long>(start),
                 static_cast<long long>(stop)));
  }
  py::array_t<float> out({static_cast<py::ssize_t>(stop - start), static_cast<py::ssize_t>(tensor.dims[0])});
  DecodeRows(tensor, start, stop, out.mutable_data());
  return out;
}

}  // namespace

void BindGguf(py::module_& module) {
  py::class_<GgufTensor>(module, "GgufTensor", "Name, type and shape of a tensor; dims[0] is the fastest.")
      .def_property_readonly("name", [](const GgufTensor& tensor) { return Text(tensor.name); })
      .def_property_readonly("type", [](const GgufTensor& tensor) { return Info(tensor.type).name; })
      .def_property_readonly(
          "dims",
          [](const GgufTensor& tensor) { return std::vector<uint64_t>(tensor.dims, tensor.dims + tensor.n_dims); })
      .def_readonly("bytes", &GgufTensor::bytes)
      .def_readonly("part", &GgufTensor::part);

  py::class_<GgufFile, std::shared_ptr<GgufFile>>(module, "GgufFile",
                                                  "A GGUF file, mapped. Immutable; any thread may use it.")
      .def(py::init([](const std::string& path) {
             return std::const_pointer_cast<GgufFile>(Take(Unlocked([&] { return GgufFile::Open(path); })));
           }),
           py::arg("path"))
      .def_property_readonly("path", &GgufFile::path)
      .def_property_readonly("version", &GgufFile::version)
      .def_property_readonly("file_bytes", &GgufFile::file_bytes)
      .def("keys",
           [](const GgufFile& file) {
             py::list keys;
             for (const auto& [key, value] : file.metadata()) keys.append(Text(key));
             return keys;
           })
      .def(
          "get",
          [](const GgufFile& file, const std::string& key, py::object fallback) {
            const GgufValue* value = file.Find(key);
            return value ? ValueToPython(*value) : fallback;
          },
          py::arg("key"), py::arg("default") = py::none())
      .def_property_readonly(
          "tensors", [](const GgufFile& file) { return file.tensors(); }, "All tensors in file order.")
      .def("config", &ConfigDict, "What the decoder makes of the metadata; raises where it does not run such a model.")
      .def("values", &Values, py::arg("name"), "A tensor's values, decoded: float32, the slowest dimension first.")
      .def("rows", &Rows, py::arg("name"), py::arg("start"), py::arg("stop"),
           "Some rows of a tensor, decoded: (stop - start, columns) float32. A vector is one row.");
}

}  // namespace kvart::python
