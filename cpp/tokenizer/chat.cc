// The Qwen chat templates, written out.
// May depend on: base, quant, gguf. Next for the token: segments.cc turns the segments into ids.
// The wording is what the models were trained on, from the templates in their files.
#include "tokenizer/chat.h"

namespace kvart {
namespace {

constexpr std::string_view kPlainSystem = "You are a helpful assistant.";
constexpr std::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n";
constexpr std::string_view kCallForm = "{\"name\": <function-name>, \"arguments\": <args-json-object>}";
constexpr std::string_view kTurnEnd = "<|im_end|>\n";

// A known template: the hash of its text without trailing blanks and without its default system prompt.
struct KnownTemplate {
  uint64_t hash;
  ChatFamily family;
  bool doubled_braces;
};
constexpr KnownTemplate kKnownTemplates[] = {
    {0x0fbfb5c24e90177f, ChatFamily::kQwen2, false},   // Qwen2 Instruct, line feeds as such
    {0xdbc23851eea954b9, ChatFamily::kQwen2, false},   // the same, line feeds as \n
    {0xc73efc1fda3307ad, ChatFamily::kQwen25, false},  // Qwen2.5 and Qwen2.5 Coder Instruct
    {0x195852fe08720c27, ChatFamily::kQwen25, true},   // Qwen2.5 Coder Instruct, as some of its GGUF files have it
    {0x2bfdb7aa9754484e, ChatFamily::kQwen3, false},   // Qwen3, first release
    {0x959a4551391a6549, ChatFamily::kQwen3, false},   // Qwen3, since: content that is not text counts as empty
    {0xcd0d41a64dfce181, ChatFamily::kQwen3Thinking, false},
};

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// The system prompt that a template falls back to: what stands in one of its strings as a whole system turn.
std::string_view DefaultSystem(std::string_view text) {
  for (const std::string_view head : {"<|im_start|>system\\n", "<|im_start|>system\n"}) {
    for (size_t i = text.find(head); i != std::string_view::npos; i = text.find(head, i + 1)) {
      const std::string_view rest = text.substr(i + head.size());
      const size_t end = rest.find("<|im_end|>");
      // A quote ends the string and a backslash would have to be read as jinja2 reads it.
      if (end == std::string_view::npos || rest.substr(0, end).find_first_of("'\"\\{}") != std::string_view::npos)
        continue;
      return rest.substr(0, end);
    }
  }
  return {};
}

std::string_view TrimNewlines(std::string_view text, bool front, bool back) {
  while (front && text.starts_with('\n')) text.remove_prefix(1);
  while (back && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

class Renderer {
 public:
  Renderer(const ChatFormat& format, std::span<const ChatMessage> messages, const ChatOptions& options)
      : format_(format), messages_(messages), options_(options) {}

  std::vector<ChatSegment> Render();

 private:
  bool Thinks() const { return format_.family == ChatFamily::kQwen3 || format_.family == ChatFamily::kQwen3Thinking; }
  void Own(std::string_view text) { Add(text, true); }     // the template's
  void Typed(std::string_view text) { Add(text, false); }  // from outside
  void Add(std::string_view text, bool template_text);
  void Head(std::string_view role) { Own("<|im_start|>"), Own(role), Own("\n"); }
  void System();
  void Turn(const ChatMessage& message);
  void Assistant(size_t index);
  void AssistantThinking(size_t index);
  void ToolCall(const ChatToolCall& call);
  void ToolAnswer(size_t index);
  size_t LastQuery() const;

  const ChatFormat& format_;
  const std::span<const ChatMessage> messages_;
  const ChatOptions& options_;
  std::vector<ChatSegment> segments_;
};

void Renderer::Add(std::string_view text, bool template_text) {
  if (text.empty()) return;
  if (segments_.empty() || segments_.back().template_text != template_text) segments_.push_back({"", template_text});
  segments_.back().text += text;
}

void Renderer::System() {
  const bool given = messages_[0].role == "system";
  if (options_.tools.empty()) {
    if (!given && format_.default_system.empty()) return;
    Head("system");
    given ? Typed(messages_[0].content) : Own(format_.default_system);
    Own(kTurnEnd);
    return;
  }
  Head("system");
  given ? Typed(messages_[0].content) : Own(format_.default_system);
  if (given || !Thinks()) Own("\n\n");
  Own(kToolsHead);
  for (const std::string& tool : options_.tools) {
    Own("\n");
    Typed(tool);
  }
  Own(kToolsTail);
  if (format_.doubled_braces) Own("{");
  Own(kCallForm);
  if (format_.doubled_braces) Own("}");
  Own("\n</tool_call>");
  Own(kTurnEnd);
}

void Renderer::Turn(const ChatMessage& message) {
  Head(message.role);
  Typed(message.content);
  Own(kTurnEnd);
}

void Renderer::ToolCall(const ChatToolCall& call) {
  Own("<tool_call>\n{\"name\": \"");
  Typed(call.name);
  Own("\", \"arguments\": ");
  Typed(call.arguments);
  Own("}\n</tool_call>");
}

void Renderer::Assistant(size_t index) {
  const ChatMessage& message = messages_[index];
  if (message.tool_calls.empty()) return Turn(message);
  Own("<|im_start|>assistant");
  if (!message.content.empty()) {
    Own("\n");
    Typed(message.content);
  }
  for (const ChatToolCall& call : message.tool_calls) {
    Own("\n");
    ToolCall(call);
  }
  Own(kTurnEnd);
}

// The last message that a user wrote; answers of tools that stand in user messages are none.
size_t Renderer::LastQuery() const {
  for (size_t i = messages_.size(); i-- > 0;) {
    const std::string_view content = messages_[i].content;
    const bool tool_answer = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages_[i].role == "user" && !tool_answer) return i;
  }
  return messages_.size() - 1;
}

void Renderer::AssistantThinking(size_t index) {
  constexpr std::string_view kThink = "<think>", kThought = "</think>";
  const ChatMessage& message = messages_[index];
  std::string_view content = message.content;
  std::string_view reasoning;
  if (message.reasoning.has_value()) {
    reasoning = *message.reasoning;
  } else if (const size_t first = content.find(kThought); first != std::string_view::npos) {
    reasoning = TrimNewlines(content.substr(0, first), false, true);
    const size_t think = reasoning.rfind(kThink);
    if (think != std::string_view::npos) reasoning.remove_prefix(think + kThink.size());
    reasoning = TrimNewlines(reasoning, true, false);
    content = TrimNewlines(content.substr(content.rfind(kThought) + kThought.size()), true, false);
  }
  Head("assistant");
  if (index > LastQuery() && (index + 1 == messages_.size() || !reasoning.empty())) {
    Own("<think>\n");
    Typed(TrimNewlines(reasoning, true, true));
    Own("\n</think>\n\n");
    Typed(TrimNewlines(content, true, false));
  } else {
    Typed(content);
  }
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    if (i > 0 || !content.empty()) Own("\n");
    ToolCall(message.tool_calls[i]);
  }
  Own(kTurnEnd);
}

void Renderer::ToolAnswer(size_t index) {
  if (index == 0 || messages_[index - 1].role != "tool") Own("<|im_start|>user");
  Own("\n<tool_response>\n");
  Typed(messages_[index].content);
  Own("\n</tool_response>");
  if (index + 1 == messages_.size() || messages_[index + 1].role != "tool") Own(kTurnEnd);
}

std::vector<ChatSegment> Renderer::Render() {
  System();
  for (size_t i = 0; i < messages_.size(); ++i) {
    const std::string& role = messages_[i].role;
    if (role == "assistant") {
      Thinks() ? AssistantThinking(i) : Assistant(i);
    } else if (role == "tool" && format_.family != ChatFamily::kQwen2) {
      ToolAnswer(i);
    } else if (role != "system" || i != 0) {
      Turn(messages_[i]);
    }
  }
  if (options_.add_generation_prompt) {
    Head("assistant");
    if (format_.family == ChatFamily::kQwen3Thinking) {
      Own("<think>\n");
    } else if (format_.family == ChatFamily::kQwen3 && options_.enable_thinking == false) {
      Own("<think>\n\n</think>\n\n");
    }
  }
  return std::move(segments_);
}

}  // namespace

Result<ChatFormat> DetectChatFormat(std::string_view chat_template, std::string_view architecture) {
  if (chat_template.empty()) {
    if (architecture == "qwen2") return ChatFormat{ChatFamily::kQwen25, std::string(kPlainSystem), false};
    if (architecture == "qwen3") return ChatFormat{ChatFamily::kQwen3, "", false};
    return Errorf(StatusCode::kUnsupported,
                  "the file has no tokenizer.chat_template, and there is none for the architecture \"%.40s\"; "
                  "wanted qwen2 or qwen3",
                  std::string(architecture).c_str());
  }
  const std::string_view system = DefaultSystem(chat_template);
  std::string text(chat_template.substr(0, chat_template.find_last_not_of(" \r\n\t") + 1));
  if (!system.empty()) {
    const std::string prompt(system);
    for (size_t i = text.find(prompt); i != std::string::npos; i = text.find(prompt, i)) text.erase(i, prompt.size());
  }
  const uint64_t hash = Fnv1a(text);
  for (const KnownTemplate& known : kKnownTemplates) {
    if (known.hash == hash) return ChatFormat{known.family, std::string(system), known.doubled_braces};
  }
  return Errorf(
      StatusCode::kUnsupported,
      "tokenizer.chat_template (%zu bytes) is not one of the Qwen2, Qwen2.5 and Qwen3 templates that are built in",
      chat_template.size());
}

Result<std::vector<ChatSegment>> RenderChat(const ChatFormat& format, std::span<const ChatMessage> messages,
                                            const ChatOptions& options) {
  if (messages.empty()) return Errorf(StatusCode::kInvalidArgument, "found no messages, wanted at least one");
  bool tools = !options.tools.empty();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return Errorf(StatusCode::kInvalidArgument,
                    "message %zu has the role \"%.40s\"; wanted system, user, assistant or tool", i, role.c_str());
    }
    tools = tools || role == "tool" || !messages[i].tool_calls.empty();
  }
  if (tools && format.family == ChatFamily::kQwen2) {
    return Errorf(StatusCode::kUnsupported, "this model's chat template knows no tools");
  }
  return Renderer(format, messages, options).Render();
}

std::string ChatText(std::span<const ChatSegment> segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

}  // namespace kvart
