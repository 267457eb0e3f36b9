// The chat templates of the Qwen family, built in: messages to the text that the models were trained on.
// May depend on: base, quant, gguf. Next for the token: segments.h turns the segments into ids.
//
// Rendered byte for byte as jinja2 renders the template of the file, for messages whose content is text. Not covered,
// and refused with kUnsupported: templates that are none of those listed at ChatFamily, and tools for a template
// without any.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/segments.h"

namespace kvart {

struct ChatToolCall {
  std::string name;
  std::string arguments;  // JSON, as the template would write the object ({"city": "Bern"})
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  std::optional<std::string> reasoning;  // of an assistant that thinks; if absent, <think> in the content is looked for
  std::vector<ChatToolCall> tool_calls;
};

struct ChatOptions {
  std::vector<std::string> tools;       // each a JSON object, written as it stands
  bool add_generation_prompt = true;    // end with the head of the answer
  std::optional<bool> enable_thinking;  // false: the answer's head holds an empty thought (qwen3)
};

enum class ChatFamily {
  kQwen2,          // turns alone, no tools
  kQwen25,         // Qwen2.5, Instruct and Coder: tools
  kQwen3,          // Qwen3, both its first template and the one since: tools, thoughts of earlier turns dropped
  kQwen3Thinking,  // Qwen3 Thinking 2507: as Qwen3, and every answer begins with a thought
};

struct ChatFormat {
  ChatFamily family = ChatFamily::kQwen25;
  std::string default_system;   // where the messages bring no system prompt; empty for none
  bool doubled_braces = false;  // some Qwen2.5 files say {{"name": ...}} where they explain tool calls
};

// What a file's template (Tokenizer::chat_template) is, whatever its default system prompt; without one, by
// architecture.
Result<ChatFormat> DetectChatFormat(std::string_view chat_template, std::string_view architecture);

// InvalidArgument for no messages and for roles that the templates pass over.
Result<std::vector<ChatSegment>> RenderChat(const ChatFormat& format, std::span<const ChatMessage> messages,
                                            const ChatOptions& options);
std::string ChatText(std::span<const ChatSegment> segments);  // all segments as one text

}  // namespace kvart
