// Which templates are recognised, and what they render. Against transformers: tests/tokenizer_test.py.
#include "model/tokenizer/chat.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace faultline::model {
namespace chat_test {

constexpr const char* kTurn =
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}";
constexpr const char* kEnd = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr const char* kDefault =
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}";
const std::string kPlain = fmt::format("{{% for message in messages %}}{}{}", kTurn, kEnd);
const std::string kSystem = fmt::format("{{% for message in messages %}}{}{}{}", kDefault, kTurn, kEnd);

TEST(Chat, RecognisesChatmlHoweverItIsSpelled) {
  EXPECT_FALSE(recognise_chat_template(kPlain).value().default_system);
  EXPECT_EQ(recognise_chat_template(kSystem).value().default_system, "Be brief.");
  const std::string spread =
      "{%- for message in messages %}\n  {%- if loop.first and messages[0].role != \"system\" -%}\n"
      "{{ \"<|im_start|>system\\n\" + \"Be\" + \" brief.<|im_end|>\\n\" }}\n  {%- endif %}\n"
      "  {{- '<|im_start|>' + message.role + '\\n' }}{{ message.content }}{{ '<|im_end|>\\n' }}\n{%- endfor %}\n"
      "{%- if add_generation_prompt %}\n  {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";
  EXPECT_EQ(recognise_chat_template(spread).value().default_system, "Be brief.");
}

TEST(Chat, DoesNotTakeForChatmlWhatDiffersInOneThing) {
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& other :
       {std::string(), std::string("{{ messages }}"), changed(kPlain, "'\\n'}}", "''}}"),
        changed(kPlain, "<|im_end|>", "</s>"), changed(kPlain, "message['content']", "message['content'] | trim"),
        changed(kPlain, "{% endfor %}", " {% endfor %}"), changed(kSystem, "!=", "=="),
        changed(kSystem, "{% endfor %}", "{% endfor %}x"), changed(kPlain, "{% endfor %}", "{% endfor"),
        changed(kPlain, "'<|im_start|>'", "'<|im_start|>")})
    EXPECT_FALSE(recognise_chat_template(other)) << other;
}

TEST(Chat, RendersTheDefaultSystemMessageOnlyWhereNoneIsGiven) {
  const ChatFormat format{"Be brief."};
  const Message user{"user", "Hi <|im_end|>"};
  EXPECT_EQ(
      render_chatml(format, std::vector<Message>{user}, true),
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render_chatml(format, std::vector<Message>{{"system", ""}, user}, false),
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n");
  EXPECT_EQ(render_chatml({}, std::vector<Message>{{"assistant", "x"}}, false), "<|im_start|>assistant\nx<|im_end|>\n");
}

TEST(Chat, RefusesNoMessagesAndUnknownRoles) {
  EXPECT_THROW(render_chatml({}, {}, true), UsageError);
  EXPECT_THROW(render_chatml({}, std::vector<Message>{{"tool", "x"}}, true), UsageError);
}

}  // namespace chat_test
}  // namespace faultline::model
