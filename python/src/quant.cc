// Binding of the block formats of weights: rows of floats into them and back.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "bindings.h"
#include "quant/quant.h"
#include "quant/quantize.h"

namespace kvart::python {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<uint8_t, py::array::c_style>;

constexpr int kMaxThreads = 256;
constexpr int64_t kTaskValues = 16384;  // a task: enough rows that claiming it costs nothing
constexpr uint32_t kTypeIds = 64;       // more than the format has given out

const DTypeInfo& TypeByName(const std::string& name) {
  std::string known;
  for (uint32_t id = 0; id < kTypeIds; ++id) {
    const DTypeInfo* info = FindDType(id);
    if (info == nullptr) continue;
    if (info->name == name) return *info;
    known += (known.empty() ? "" : ", ") + std::string(info->name);
  }
  Raise(Status(StatusCode::kInvalidArgument, "type: expected one of " + known + ", found '" + name + "'"));
}

int ThreadCount(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    Raise(Errorf(StatusCode::kInvalidArgument, "threads: found %d, wanted 1 … %d, or 0 for all usable cores", threads,
                 kMaxThreads));
  }
  return threads > 0 ? threads : UsableCores();
}

void WantMatrix(const py::array& array, const char* name) {
  if (array.ndim() != 2) {
    Raise(Errorf(StatusCode::kInvalidArgument, "%s: expected two dimensions, found %d", name,
                 static_cast<int>(array.ndim())));
  }
}

void WantBlocks(const char* what, int64_t found, const DTypeInfo& info, int unit) {
  if (found % unit != 0) {
    Raise(Errorf(StatusCode::kInvalidArgument, "%s needs rows of a multiple of %d %s, found %lld", info.name.data(),
                 unit, what, static_cast<long long>(found)));
  }
}

const float* CheckImportance(const Floats& importance, int64_t cols) {
  if (importance.ndim() != 1 || importance.size() != cols) {
    Raise(Errorf(StatusCode::kInvalidArgument, "importance: expected shape (%lld,), found %lld values in %d dimensions",
                 static_cast<long long>(cols), static_cast<long long>(importance.size()),
                 static_cast<int>(importance.ndim())));
  }
  const float* values = importance.data();
  for (int64_t i = 0; i < cols; ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0.0f) continue;
    Raise(Errorf(StatusCode::kInvalidArgument, "importance of column %lld: expected a number of 0 or more, found %f",
                 static_cast<long long>(i), static_cast<double>(values[i])));
  }
  return values;
}

// Calls row(r) for all rows, in parallel; the status of the first row that fails, whoever finds it.
template <class Row>
Status ForRows(int threads, int64_t rows, int64_t cols, const Row& row) {
  const int64_t step = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(1, cols));
  const int64_t tasks = (rows + step - 1) / step;
  ThreadPool pool(static_cast<int>(std::min<int64_t>(threads, std::max<int64_t>(1, tasks))));
  std::atomic<int64_t> first_bad = rows;
  pool.Run(tasks, [&](int64_t task, int) {
    for (int64_t r = task * step; r < std::min(rows, (task + 1) * step); ++r) {
      if (row(r).ok()) continue;
      int64_t seen = first_bad.load();
      while (r < seen && !first_bad.compare_exchange_weak(seen, r)) {
      }
      return;
    }
  });
  if (first_bad.load() == rows) return Status::Ok();
  const Status status = row(first_bad.load());
  return Status(status.code(), "row " + std::to_string(first_bad.load()) + ", " + status.message());
}

Bytes QuantizeRows(const Floats& x, const std::string& type, const std::optional<Floats>& importance, int threads) {
  const DTypeInfo& info = TypeByName(type);
  if (!CanQuantize(info.type)) {
    Raise(Errorf(StatusCode::kUnsupported, "no encoder for %s", info.name.data()));
  }
  WantMatrix(x, "x");
  const int64_t rows = x.shape(0), cols = x.shape(1);
  WantBlocks("columns", cols, info, info.block_values);
  const float* w = importance ? CheckImportance(*importance, cols) : nullptr;
  const int n_threads = ThreadCount(threads);
  const int64_t row_bytes = static_cast<int64_t>(RowBytes(info.type, static_cast<uint64_t>(cols)));
  Bytes out({rows, row_bytes});
  const float* src = x.data();
  uint8_t* dst = out.mutable_data();
  Check(Unlocked([&] {
    return ForRows(n_threads, rows, cols,
                   [&](int64_t r) { return QuantizeRow(info.type, src + r * cols, cols, w, dst + r * row_bytes); });
  }));
  return out;
}

py::array_t<float> DequantizeRows(const Bytes& data, const std::string& type, int threads) {
  const DTypeInfo& info = TypeByName(type);
  WantMatrix(data, "data");
  const int64_t rows = data.shape(0), row_bytes = data.shape(1);
  WantBlocks("bytes", row_bytes, info, info.block_bytes);
  const int n_threads = ThreadCount(threads);
  const int64_t cols = row_bytes / info.block_bytes * info.block_values;
  py::array_t<float> out({rows, cols});
  const uint8_t* src = data.data();
  float* dst = out.mutable_data();
  Check(Unlocked([&] {
    return ForRows(n_threads, rows, cols, [&](int64_t r) {
      DecodeRow(info.type, src + r * row_bytes, cols, dst + r * cols);
      return Status::Ok();
    });
  }));
  return out;
}

Bytes RawRows(const GgufFile& file, const std::string& name, int64_t start, int64_t stop) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    Raise(Status(StatusCode::kNotFound, file.path() + ": there is no tensor " + name.substr(0, 64), file.path()));
  }
  const int64_t rows = static_cast<int64_t>(tensor->dims[1] * tensor->dims[2] * tensor->dims[3]);
  if (start < 0 || stop < start || stop > rows) {
    Raise(Errorf(StatusCode::kInvalidArgument, "rows of %s: expected a part of 0 … %lld, found %lld … %lld",
                 name.substr(0, 64).c_str(), static_cast<long long>(rows), static_cast<long long>(start),
                 static_cast<long long>(stop)));
  }
  const uint64_t row_bytes = RowBytes(tensor->type, tensor->dims[0]);
  const uint8_t* from = tensor->data + static_cast<uint64_t>(start) * row_bytes;
  const size_t bytes = static_cast<size_t>(stop - start) * row_bytes;
  Bytes out({static_cast<py::ssize_t>(stop - start), static_cast<py::ssize_t>(row_bytes)});
  Unlocked([&, to = out.mutable_data()] {
    std::memcpy(to, from, bytes);
    if (const Mapping* mapping = file.MappingOf(*tensor)) mapping->Drop(from, bytes);
    return true;
  });
  return out;
}

}  // namespace

void BindQuant(py::module_& module) {
  module.def("quantize_rows", &QuantizeRows, py::arg("x"), py::arg("type"), py::arg("importance") = py::none(),
             py::arg("threads") = 0,
             "x: (rows, cols) float32 as rows of a GGUF type such as 'q4_0': (rows, bytes a row) uint8. importance:\n"
             "(cols,) or None, how much the square of an error in a column costs. The bytes do not depend on threads;\n"
             "0 takes all usable cores. InvalidArgument names a value that the type cannot hold, and a wrong shape.");
  module.def("dequantize_rows", &DequantizeRows, py::arg("data"), py::arg("type"), py::arg("threads") = 0,
             "data: (rows, bytes a row) uint8 of a GGUF type as (rows, cols) float32, bit-equal to the gguf package.");
  module.def("raw_rows", &RawRows, py::arg("file"), py::arg("name"), py::arg("start"), py::arg("stop"),
             "Some rows of a file's tensor as they lie in it: (stop - start, bytes a row) uint8. A vector is one row.\n"
             "The file's own pages are let go of, so that reading a whole file this way takes no memory.");
}

}  // namespace kvart::python
