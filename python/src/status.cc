// Status to Python exceptions: the one place where they are made.
#include "bindings.h"

namespace kvart::python {

void Raise(const Status& status) {
  // Messages quote names out of files, which may hold any bytes.
  const auto text = [](const std::string& bytes) {
    return py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
  };
  py::object error = py::module_::import("kvart.errors")
                         .attr("from_status")(StatusCodeName(status.code()), text(status.message()),
                                              text(status.file()), status.offset());
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
