// Binding of the built-in chat templates.
#include "tokenizer/chat.h"

#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "bindings.h"

namespace kvart::python {
namespace {

// (role, content, reasoning or None, [(name, arguments) of its tool calls])
using Message =
    std::tuple<std::string, std::string, std::optional<std::string>, std::vector<std::pair<std::string, std::string>>>;

std::vector<std::pair<std::string, bool>> Render(const std::string& chat_template, const std::string& architecture,
                                                 const std::vector<Message>& given,
                                                 const std::vector<std::string>& tools, bool add_generation_prompt,
                                                 std::optional<bool> enable_thinking) {
  std::vector<ChatMessage> messages;
  for (const auto& [role, content, reasoning, calls] : given) {
    ChatMessage message{role, content, reasoning, {}};
    for (const auto& [name, arguments] : calls) message.tool_calls.push_back({name, arguments});
    messages.push_back(std::move(message));
  }
  const ChatFormat format = Take(DetectChatFormat(chat_template, architecture));
  std::vector<std::pair<std::string, bool>> parts;
  for (ChatSegment& segment : Take(RenderChat(format, messages, {tools, add_generation_prompt, enable_thinking}))) {
    parts.emplace_back(std::move(segment.text), segment.template_text);
  }
  return parts;
}

}  // namespace

void BindChat(py::module_& module) {
  module.def("render_chat", &Render, py::arg("chat_template"), py::arg("architecture"), py::arg("messages"),
             py::arg("tools"), py::arg("add_generation_prompt") = true, py::arg("enable_thinking") = py::none(),
             "Parts of a chat as (text, whether the template wrote it), by the built-in templates of the Qwen family.");
}

}  // namespace kvart::python
