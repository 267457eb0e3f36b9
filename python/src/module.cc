// The extension module kvart._core. Its Python face is in python/kvart; stubs are in _core.pyi.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The core of kvart. Use the package kvart: names in here may change.";
  module.attr("__version__") = KVART_VERSION;
  kvart::python::BindStatus(module);
  kvart::python::BindGguf(module);
  kvart::python::BindQuant(module);
  kvart::python::BindTokenizer(module);
  kvart::python::BindChat(module);
  kvart::python::BindSampler(module);
  kvart::python::BindModel(module);
  kvart::python::BindSession(module);
  kvart::python::BindCache(module);
  kvart::python::BindMachine(module);
}
