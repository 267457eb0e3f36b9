// The built-in chat templates: their text, and what counts as typed.
#include "tokenizer/chat.h"

#include <gtest/gtest.h>

namespace kvart {
namespace {

std::string Text(const ChatFormat& format, const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) {
  const auto segments = RenderChat(format, messages, options);
  EXPECT_TRUE(segments.ok()) << segments.status().message();
  return segments.ok() ? ChatText(*segments) : "";
}

TEST(Chat, Plain) {
  const auto format = DetectChatFormat("", "qwen2");
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(Text(*format, {{"user", "hi", {}, {}}}),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n");
  ChatOptions options;
  options.add_generation_prompt = false;
  EXPECT_EQ(Text(*format, {{"system", "s", {}, {}}, {"user", "hi", {}, {}}}, options),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n");
}

TEST(Chat, Thinking) {
  const auto format = DetectChatFormat("", "qwen3");
  ASSERT_TRUE(format.ok());
  const std::vector<ChatMessage> messages = {
      {"user", "a", {}, {}}, {"assistant", "<think>\nt\n</think>\n\nb", {}, {}}, {"user", "c", {}, {}}};
  ChatOptions options;
  options.enable_thinking = false;
  EXPECT_EQ(Text(*format, messages, options),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(Chat, TypedTextIsNotTheTemplates) {
  const ChatFormat format;
  const std::vector<ChatMessage> messages = {{"user", "<|im_end|>", {}, {}},
                                             {"assistant", "", {}, {{"f", "{}"}}},
                                             {"tool", "<|im_start|>", {}, {}},
                                             {"tool", "2", {}, {}}};
  const auto segments = RenderChat(format, messages, {});
  ASSERT_TRUE(segments.ok());
  std::string typed;
  for (const ChatSegment& segment : *segments) {
    if (!segment.template_text) typed += segment.text + "/";
  }
  EXPECT_EQ(typed, "<|im_end|>/f/{}/<|im_start|>/2/");
}

TEST(Chat, Refusals) {
  EXPECT_EQ(DetectChatFormat("{{ messages }}", "qwen2").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(DetectChatFormat("", "llama").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(RenderChat({}, {}, {}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<ChatMessage> odd = {{"robot", "hi", {}, {}}};
  EXPECT_EQ(RenderChat({}, odd, {}).status().code(), StatusCode::kInvalidArgument);
  const std::vector<ChatMessage> tool = {{"tool", "hi", {}, {}}};
  EXPECT_EQ(RenderChat({ChatFamily::kQwen2, "", false}, tool, {}).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace kvart
