#include "model/tokenizer/chat.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/config/config.h"
#include "base/error.h"
#include "base/text.h"

namespace faultline::model {
namespace {

// Some templates define it first; the effect is the same.
constexpr std::string_view kPreamble =
    R"({%if not add_generation_prompt is defined%}{%set add_generation_prompt=false%}{%endif%})";
constexpr std::string_view kPlain =
    R"({%for message in messages%}{{"<|im_start|>"+message.role+"\n"+message.content+"<|im_end|>\n"}}{%endfor%})"
    R"({%if add_generation_prompt%}{{"<|im_start|>assistant\n"}}{%endif%})";
constexpr std::string_view kWithDefault =  // SmolLM2, Qwen2
    R"({%for message in messages%}{%if loop.first and messages[0].role!="system"%}{{"<|im_start|>system\n@<|im_end|>\n"}}{%endif%})"
    R"({{"<|im_start|>"+message.role+"\n"+message.content+"<|im_end|>\n"}}{%endfor%})"
    R"({%if add_generation_prompt%}{{"<|im_start|>assistant\n"}}{%endif%})";
// Qwen2.5: 2 KiB, most of it about tools, of which we have none; known by hash64 of its canonical spelling. Without
// tools, and for our three roles, it renders as kWithDefault does.
constexpr uint64_t kQwen25 = 0x7d7c7524b04023e8;

}  // namespace

std::optional<ChatFormat> recognise_chat_template(std::string_view jinja) {
  ChatFormat format;
  const std::string canonical = canonical_template(jinja, format.default_system);
  std::string_view shape = canonical;
  if (shape.starts_with(kPreamble)) shape.remove_prefix(kPreamble.size());
  const bool with_default = shape == kWithDefault || hash64(shape) == kQwen25;
  if (with_default != format.default_system.has_value()) return std::nullopt;
  if (!with_default && shape != kPlain) return std::nullopt;
  return format;
}

std::string render_chatml(const ChatFormat& format, std::span<const Message> messages, bool add_generation_prompt) {
  if (messages.empty()) throw UsageError("a conversation without messages cannot be rendered; give at least one");
  std::string text;
  const auto turn = [&](std::string_view role, std::string_view content) {
    text += fmt::format("<|im_start|>{}\n{}{}\n", role, content, kEndOfTurn);
  };
  if (format.default_system && messages[0].role != "system") turn("system", *format.default_system);
  for (const Message& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
      throw UsageError(fmt::format("a message of role {}: only system, user and assistant are supported",
                                   describe_text(message.role)));
    turn(message.role, message.content);
  }
  if (add_generation_prompt) text += "<|im_start|>assistant\n";
  return text;
}

}  // namespace faultline::model
