// Status to Python exceptions: the one place where they are made.
#include "bindings.h"

namespace kvart::python {

py::object Text(const std::string& bytes) {
  PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

void Raise(const Status& status) {
  py::object error = py::module_::import("kvart.errors")
                         .attr("from_status")(StatusCodeName(status.code()), Text(status.message()),
                                              Text(status.file()), status.offset());
  PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

// pybind11 itself turns std::bad_alloc into MemoryError.
void BindStatus(py::module_& module) {
  module.def(
      "_raise", [](int code, const std::string& message) { Raise(Status(static_cast<StatusCode>(code), message)); },
      py::arg("code"), py::arg("message"), "Raises the exception of a status code: for tests.");
}

}  // namespace kvart::python
