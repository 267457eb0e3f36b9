// What the binding files share: Status to exceptions, the GIL let go round work, callbacks with signals, lifetimes.
// May depend on: pybind11 and the core's headers.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace kvart::python {

namespace py = pybind11;

void BindStatus(py::module_& module);
void BindGguf(py::module_& module);
void BindQuant(py::module_& module);
void BindTokenizer(py::module_& module);
void BindChat(py::module_& module);
void BindSampler(py::module_& module);
void BindModel(py::module_& module);
void BindSession(py::module_& module);
void BindCache(py::module_& module);
void BindMachine(py::module_& module);

// Throws the exception of kvart.errors for a Status that is not ok. Needs the GIL.
[[noreturn]] void Raise(const Status& status);

// bytes as a str: text out of files may hold any bytes, and those that are no UTF-8 become \xNN.
py::object Text(const std::string& bytes);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T Take(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// Threads that want the GIL while the interpreter ends are ended inside the call, by an unwinding that may not pass
// through destructors. They rest here instead, holding no lock, until the process is gone a moment later.
[[noreturn]] inline void RestForEver() {
  for (;;) pause();
}

inline void TakeGil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    RestForEver();
  }
}

// Runs work without the GIL: everything that computes, reads a file or may wait for another thread.
template <class Work>
auto Unlocked(Work&& work) {
  PyThreadState* state = PyEval_SaveThread();
  try {
    auto result = work();
    TakeGil(state);
    return result;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!error) RestForEver();  // no C++ exception: a callback of work met the end of the interpreter
    TakeGil(state);
    std::rethrow_exception(error);
  }
}

// Hands a Python callable (or None) to the core as Progress. Each call looks for signals, so Ctrl-C stops within one.
// What is raised in it cancels the work and is raised again by Rethrow, once the core has unwound.
class PyProgress {
 public:
  explicit PyProgress(py::object callback) : callback_(std::move(callback)) {}

  Progress Get() {
    return [this](double done) { return Call(done); };
  }
  void Rethrow() {
    if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
  }

 private:
  bool Call(double done) {
    py::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return callback_.is_none() || !callback_(done).is(py::bool_(false));
    } catch (...) {
      if (!raised_) raised_ = std::current_exception();
      return false;
    }
  }

  py::object callback_;
  std::exception_ptr raised_;
};

// Owns an engine object for Python. Its destructor may wait for a thread that itself waits for the GIL, so it runs
// without. In a forked child the locks and threads it would wait for are gone: there it is left to the end of the
// process.
template <class T>
std::shared_ptr<T> Own(std::unique_ptr<T> object) {
  return std::shared_ptr<T>(object.release(), [owner = getpid()](T* pointer) {
    if (getpid() != owner) return;
    PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    delete pointer;
    if (state != nullptr) TakeGil(state);
  });
}

py::dict StatsDict(const Stats& stats);

}  // namespace kvart::python
