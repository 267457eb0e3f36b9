// Binding of the tokenizer and of its two streams.
#include "tokenizer/tokenizer.h"

#include <pybind11/stl.h>

#include <optional>

#include "bindings.h"
#include "tokenizer/segments.h"

namespace kvart::python {
namespace {

AddedTokens Mode(bool special) {
  return special ? AddedTokens::kParse : AddedTokens::kPlain;
}

// A tokenizer that stands alone, with the file that its views may lead into.
struct FileTokenizer {
  std::shared_ptr<const GgufFile> file;
  std::unique_ptr<const Tokenizer> tokenizer;
};

std::shared_ptr<Tokenizer> FromFile(const std::string& path) {
  auto both = std::make_shared<FileTokenizer>();
  both->file = Take(Unlocked([&] { return GgufFile::Open(path); }));
  both->tokenizer = Take(Unlocked([&] { return Tokenizer::FromGguf(*both->file); }));
  return std::shared_ptr<Tokenizer>(both, const_cast<Tokenizer*>(both->tokenizer.get()));
}

py::str Characters(const std::string& utf8) {
  return py::str(utf8);
}

}  // namespace

void BindTokenizer(py::module_& module) {
  py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(module, "Tokenizer",
                                                    "Text to ids and back. Immutable; any thread may use it.")
      .def(py::init(&FromFile), py::arg("path"), "Of a GGUF file, without loading its weights.")
      .def(
          "encode",
          [](const Tokenizer& tokenizer, const std::string& text, bool special) {
            return Take(Unlocked([&] { return tokenizer.Encode(text, Mode(special)); }));
          },
          py::arg("text"), py::kw_only(), py::arg("special") = true,
          "Ids of a text (str, or bytes in UTF-8). special: added tokens such as <|im_end|> are parsed; else they are "
          "plain text.")
      .def(
          "encode_segments",
          [](const Tokenizer& tokenizer, const std::vector<std::pair<std::string, bool>>& parts) {
            std::vector<ChatSegment> segments;
            for (const auto& [text, special] : parts) segments.push_back({text, special});
            return Take(Unlocked([&] { return EncodeSegments(tokenizer, segments); }));
          },
          py::arg("segments"),
          "Ids of (text, special) parts as one text: added tokens are parsed where all of one is in special parts.")
      .def(
          "decode",
          [](const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_control) {
            const std::string bytes = tokenizer.Decode(ids, skip_control);
            return py::reinterpret_steal<py::str>(
                PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
          },
          py::arg("ids"), py::kw_only(), py::arg("skip_control") = false)
      .def(
          "token_bytes", [](const Tokenizer& tokenizer, int32_t id) { return py::bytes(tokenizer.TokenBytes(id)); },
          py::arg("id"))
      .def(
          "find",
          [](const Tokenizer& tokenizer, const std::string& text) -> std::optional<int32_t> {
            const int32_t id = tokenizer.FindToken(text);
            return id < 0 ? std::nullopt : std::optional<int32_t>(id);
          },
          py::arg("text"), "The id of a token given by its text, or None.")
      .def("is_control", &Tokenizer::IsControl, py::arg("id"))
      .def("is_end", &Tokenizer::IsEnd, py::arg("id"))
      .def(
          "added_tokens",
          [](const Tokenizer& tokenizer) {
            std::vector<int32_t> ids;
            for (int32_t id = 0; id < tokenizer.n_vocab(); ++id) {
              if (tokenizer.IsAdded(id)) ids.push_back(id);
            }
            return ids;
          },
          "Ids of all control and user-defined tokens.")
      .def_property_readonly("n_vocab", &Tokenizer::n_vocab)
      .def_property_readonly("end_ids", &Tokenizer::end_ids)
      .def_property_readonly("chat_template",
                             [](const Tokenizer& tokenizer) {
                               const std::string& text = tokenizer.chat_template();
                               return py::reinterpret_steal<py::str>(
                                   PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
                             })
      .def_property_readonly("pre", &Tokenizer::pre);

  py::class_<StreamEncoder>(module, "StreamEncoder", "Encodes text that arrives in pieces. One thread at a time.")
      .def(py::init([](const Tokenizer& tokenizer, bool special) {
             return std::make_unique<StreamEncoder>(tokenizer, Mode(special));
           }),
           py::arg("tokenizer"), py::kw_only(), py::arg("special") = true, py::keep_alive<1, 2>())
      .def(
          "push",
          [](StreamEncoder& encoder, const std::string& bytes) {
            std::vector<int32_t> ids;
            Check(encoder.Push(bytes, &ids));
            return ids;
          },
          py::arg("text"))
      .def("finish", [](StreamEncoder& encoder) {
        std::vector<int32_t> ids;
        Check(encoder.Finish(&ids));
        return ids;
      });

  py::class_<StreamDecoder>(module, "StreamDecoder",
                            "Decodes ids as they come, in whole characters. One thread at a time.")
      .def(py::init<const Tokenizer&, bool>(), py::arg("tokenizer"), py::kw_only(), py::arg("skip_control") = true,
           py::keep_alive<1, 2>())
      .def(
          "push", [](StreamDecoder& decoder, int32_t id) { return Characters(decoder.Push(id)); }, py::arg("id"))
      .def("finish", [](StreamDecoder& decoder) { return Characters(decoder.Finish()); });
}

}  // namespace kvart::python
