// Binding of the GGUF reader: metadata and the list of tensors.
#include <pybind11/stl.h>

#include "bindings.h"

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
          "tensors", [](const GgufFile& file) { return file.tensors(); }, "All tensors in file order.");
}

}  // namespace kvart::python
