// Binding of what the machine itself can do: the bandwidth that `kvart bench` measures decode against.
#include <pybind11/stl.h>

#include "base/bandwidth.h"
#include "bindings.h"

namespace kvart::python {
namespace {

double ReadBandwidthOf(int n_threads, const std::vector<int>& cpus, uint64_t bytes, int passes) {
  const auto read = Unlocked([&]() -> Result<ReadBandwidth> {
    KVART_ASSIGN_OR_RETURN(const ThreadPlan plan, PlanThreads(n_threads, cpus));
    ThreadPool pool(plan);
    return MeasureReadBandwidth(pool, bytes, passes);
  });
  return Take(read).gb_s;
}

}  // namespace

void BindMachine(py::module_& module) {
  module.def("read_bandwidth", &ReadBandwidthOf, py::kw_only(), py::arg("n_threads") = 0,
             py::arg("cpus") = std::vector<int>(), py::arg("bytes") = 0, py::arg("passes") = 3);
}

}  // namespace kvart::python
