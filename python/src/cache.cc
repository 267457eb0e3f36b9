// Binding of what is kept on disk, for people: stores, sessions; and of the cache formats' names and blocks.
#include <pybind11/stl.h>

#include "bindings.h"
#include "kvcache/directory.h"
#include "kvcache/journal.h"
#include "kvcache/layout.h"

namespace kvart::python {
namespace {

py::object Problem(const Status& status) {
  if (status.ok()) return py::none();
  return Text(status.message());
}

py::dict StoreDict(const StoreInfo& info) {
  py::dict dict;
  dict["file"] = info.file;
  dict["bytes"] = info.bytes;
  dict["last_use"] = info.last_use;
  dict["busy"] = info.busy;
  dict["problem"] = Problem(info.problem);
  if (!info.problem.ok()) return dict;
  dict["fingerprint"] = info.fingerprint;
  dict["k_format"] = info.k_format;
  dict["v_format"] = info.v_format;
  dict["n_layers"] = info.n_layers;
  dict["n_kv_heads"] = info.n_kv_heads;
  dict["head_dim"] = info.head_dim;
  dict["page_tokens"] = info.page_tokens;
  dict["sinks"] = info.sinks;
  dict["slot_bytes"] = info.slot_bytes;
  dict["slots"] = info.slots;
  dict["pages"] = info.pages;
  dict["sink_records"] = info.sink_records;
  dict["damaged"] = info.damaged;
  dict["damaged_offsets"] = info.damaged_offsets;
  return dict;
}

py::dict SessionDict(const SessionInfo& info) {
  py::dict dict;
  dict["name"] = info.name;
  dict["bytes"] = info.bytes;
  dict["modified"] = info.modified;
  dict["busy"] = info.busy;
  dict["problem"] = Problem(info.problem);
  if (!info.problem.ok()) return dict;
  dict["tokens"] = info.tokens;
  dict["cut_bytes"] = info.cut_bytes;
  dict["k_format"] = info.store.k_format;
  dict["v_format"] = info.store.v_format;
  return dict;
}

std::string SessionsIn(const std::string& directory) {
  return directory + "/sessions";
}

py::list ListStores(const std::string& directory) {
  py::list list;
  for (const StoreInfo& info : Take(Unlocked([&] { return KvDirectory(SystemFiles(), directory).List(); }))) {
    list.append(StoreDict(info));
  }
  return list;
}

py::dict ClearStores(const std::string& directory, uint64_t keep_bytes) {
  const ClearReport report = Take(Unlocked([&] { return KvDirectory(SystemFiles(), directory).Clear(keep_bytes); }));
  py::dict dict;
  dict["removed_files"] = report.removed_files;
  dict["removed_bytes"] = report.removed_bytes;
  dict["kept_bytes"] = report.kept_bytes;
  dict["busy_files"] = report.busy_files;
  return dict;
}

py::list ListSessions(const std::string& directory) {
  py::list list;
  for (const SessionInfo& info : Take(Unlocked([&] { return Journal::List(SystemFiles(), SessionsIn(directory)); }))) {
    list.append(SessionDict(info));
  }
  return list;
}

py::dict BlockDict(const KvFormat& format, bool keys, int tokens, int head_dim) {
  const KvBlock block(format, keys, tokens, head_dim);
  py::dict dict;
  dict["format"] = ToString(format, keys);
  dict["bits"] = format.code == KvCode::kF32    ? 32
                 : format.code == KvCode::kF16  ? 16
                 : format.code == KvCode::kInt8 ? 8
                                                : 4;
  dict["per_token"] = format.axis == KvAxis::kToken;
  dict["norm"] = format.norm;
  dict["bytes"] = block.bytes();
  dict["params"] = block.params();
  dict["n_groups"] = block.n_groups();
  dict["n_per_group"] = block.n_per_group();
  dict["group"] = block.group();
  return dict;
}

}  // namespace

void BindCache(py::module_& module) {
  module.def("list_stores", &ListStores, py::arg("directory"));
  module.def(
      "verify_store",
      [](const std::string& directory, const std::string& file) {
        return StoreDict(Take(Unlocked([&] { return KvDirectory(SystemFiles(), directory).Verify(file); })));
      },
      py::arg("directory"), py::arg("file"));
  module.def(
      "remove_store",
      [](const std::string& directory, const std::string& file) {
        Check(Unlocked([&] { return KvDirectory(SystemFiles(), directory).Remove(file); }));
      },
      py::arg("directory"), py::arg("file"));
  module.def("clear_stores", &ClearStores, py::arg("directory"), py::arg("keep_bytes"));
  module.def("list_sessions", &ListSessions, py::arg("directory"));
  module.def(
      "remove_session",
      [](const std::string& directory, const std::string& name) {
        Check(Unlocked([&] { return Journal::Remove(SystemFiles(), SessionsIn(directory), name); }));
      },
      py::arg("directory"), py::arg("name"));
  module.def(
      "check_session_name", [](const std::string& name) { Check(CheckSessionName(name)); }, py::arg("name"));
  module.def(
      "check_kv_formats", [](const std::string& k, const std::string& v) { Take(ParseKvFormats(k, v)); }, py::arg("k"),
      py::arg("v"));
  module.def(
      "kv_blocks",
      [](const std::string& k, const std::string& v, int tokens, int head_dim) {
        const KvFormats formats = Take(ParseKvFormats(k, v));
        return py::make_tuple(BlockDict(formats.k, true, tokens, head_dim),
                              BlockDict(formats.v, false, tokens, head_dim));
      },
      py::arg("k"), py::arg("v"), py::arg("tokens"), py::arg("head_dim"),
      "How a sealed page keeps one KV head's keys and values.");
  module.def(
      "page_bytes",
      [](const std::string& k, const std::string& v, int n_layers, int n_kv_heads, int head_dim) {
        KvGeometry g;
        g.n_layers = n_layers;
        g.n_kv_heads = n_kv_heads;
        g.head_dim = head_dim;
        g.formats = Take(ParseKvFormats(k, v));
        Check(CheckGeometry(g));
        const uint64_t payload = SealedOffsets(g).bytes();
        return py::make_tuple(payload, SlotBytes(g.page_tokens, payload));
      },
      py::arg("k"), py::arg("v"), py::arg("n_layers"), py::arg("n_kv_heads"), py::arg("head_dim"),
      "A sealed page's payload and its slot in a store, in bytes.");
  module.attr("PAGE_TOKENS") = KvGeometry{}.page_tokens;
}

}  // namespace kvart::python
