// Chat templates are Jinja programs. We do not run them: we put a template into a canonical spelling and compare it
// with the shapes whose rendering we know, which are those of the ChatML kind. A template that does anything else is
// refused, because a conversation that is rendered almost right is a model that answers almost as well.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"

namespace faultline::model {

struct ChatFormat {
  std::optional<std::string> default_system;  // inserted where the first message is none
};

inline constexpr std::string_view kEndOfTurn = "<|im_end|>";

// nullopt where the template is not of the ChatML kind.
std::optional<ChatFormat> recognise_chat_template(std::string_view jinja);

// UsageError for no messages and for roles other than system, user, assistant.
std::string render_chatml(const ChatFormat& format, std::span<const Message> messages, bool add_generation_prompt);

// One spelling for templates that differ only in white space, quotes, `a.b` and `a['b']`, and how literals are cut.
// The default system message is replaced by "@" and given in `default_system`. Empty where it is not Jinja we can read.
std::string canonical_template(std::string_view jinja, std::optional<std::string>& default_system);

}  // namespace faultline::model
