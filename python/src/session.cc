// Binding of the engine's Session. The decode loop itself is in kvart/generation.py: one next() a token, so signals are
// seen between tokens and nothing runs ahead of who reads.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings.h"

namespace kvart::python {
namespace {

void Append(Session& session, const std::vector<int32_t>& ids, py::object callback) {
  PyProgress progress(std::move(callback));
  const Status status = Unlocked([&] { return session.Append(ids, progress.Get()); });
  progress.Rethrow();
  Check(status);
}

py::array_t<float> AppendLogits(Session& session, const std::vector<int32_t>& ids, py::ssize_t n_vocab,
                                py::object callback) {
  py::array_t<float> out({static_cast<py::ssize_t>(ids.size()), n_vocab});
  PyProgress progress(std::move(callback));
  const Status status =
      Unlocked([&, data = out.mutable_data()] { return session.AppendLogits(ids, data, progress.Get()); });
  progress.Rethrow();
  Check(status);
  return out;
}

// (n_kv_heads, n, head_dim), owning the vector's memory.
py::array_t<float> ToArray(std::vector<float> values, py::ssize_t n_kv_heads, py::ssize_t n, py::ssize_t head_dim) {
  auto* owned = new std::vector<float>(std::move(values));
  py::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<float>*>(pointer); });
  return py::array_t<float>({n_kv_heads, n, head_dim}, owned->data(), owner);
}

py::tuple ReadKv(Session& session, int layer, py::ssize_t n_kv_heads, py::ssize_t head_dim) {
  std::vector<float> k, v;
  Check(Unlocked([&] { return session.ReadKv(layer, &k, &v); }));
  const auto n = static_cast<py::ssize_t>(k.size()) / (n_kv_heads * head_dim);
  return py::make_tuple(ToArray(std::move(k), n_kv_heads, n, head_dim), ToArray(std::move(v), n_kv_heads, n, head_dim));
}

py::dict ResumedDict(const Resumed& resumed) {
  py::dict dict;
  dict["existed"] = resumed.existed;
  dict["tokens"] = resumed.tokens;
  dict["from_pages"] = resumed.from_pages;
  dict["from_open_page"] = resumed.from_open_page;
  dict["to_compute"] = resumed.to_compute;
  dict["note"] = Text(resumed.note);
  return dict;
}

// kv: for each layer K and V, (n_kv_heads, ids.size(), head_dim). Their shapes are checked before this.
using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;
void ImportKv(Session& session, const std::vector<int32_t>& ids,
              const std::vector<std::pair<FloatArray, FloatArray>>& kv) {
  std::vector<std::vector<float>> k, v;
  for (const auto& [keys, values] : kv) {
    k.emplace_back(keys.data(), keys.data() + keys.size());
    v.emplace_back(values.data(), values.data() + values.size());
  }
  Check(Unlocked([&] { return session.ImportKv(ids, k, v); }));
}

}  // namespace

void BindSession(py::module_& module) {
  py::class_<Session, std::shared_ptr<Session>>(module, "Session",
                                                "A text and its K/V. Calls from several threads wait for each other.")
      .def("append", &Append, py::arg("ids"), py::arg("progress") = py::none())
      .def("append_logits", &AppendLogits, py::arg("ids"), py::arg("n_vocab"), py::arg("progress") = py::none())
      .def(
          "next",
          [](Session& session, Sampler& sampler) { return Take(Unlocked([&] { return session.Next(sampler); })); },
          py::arg("sampler"))
      .def(
          "last_logits",
          [](Session& session, py::ssize_t n_vocab) {
            py::array_t<float> out(n_vocab);
            Check(Unlocked([&, data = out.mutable_data()] { return session.LastLogits(data); }));
            return out;
          },
          py::arg("n_vocab"))
      .def(
          "rewind", [](Session& session, int64_t n) { Check(Unlocked([&] { return session.Rewind(n); })); },
          py::arg("n"))
      .def("fork", [](Session& session) { return Own(Take(Unlocked([&] { return session.Fork(); }))); })
      .def("tokens", [](const Session& session) { return Unlocked([&] { return session.tokens(); }); })
      .def("size", [](const Session& session) { return Unlocked([&] { return session.size(); }); })
      .def("ctx", [](const Session& session) { return Unlocked([&] { return session.ctx(); }); })
      .def_property_readonly("options", [](const Session& session) { return session.options(); })
      .def("read_kv", &ReadKv, py::arg("layer"), py::arg("n_kv_heads"), py::arg("head_dim"))
      .def(
          "read_raw_page",
          [](Session& session, int64_t page, int layer) {
            std::vector<uint8_t> bytes, fine;
            Check(Unlocked([&] { return session.ReadRawPage(page, layer, &bytes, &fine); }));
            return py::make_tuple(py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                                  py::bytes(reinterpret_cast<const char*>(fine.data()), fine.size()));
          },
          py::arg("page"), py::arg("layer"))
      .def("import_kv", &ImportKv, py::arg("ids"), py::arg("kv"))
      .def(
          "save",
          [](Session& session, const std::string& path) { Check(Unlocked([&] { return session.Save(path); })); },
          py::arg("path"))
      .def("close", [](Session& session) { Check(Unlocked([&] { return session.Close(); })); })
      .def("resumed", [](const Session& session) { return ResumedDict(session.resumed()); })
      .def("stats", [](const Session& session) { return StatsDict(Unlocked([&] { return session.stats(); })); });
}

}  // namespace kvart::python
