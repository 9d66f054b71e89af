// The files beside tokenizer.json: where generation ends (tokenizer_config.json's eos_token, generation_config.json's
// eos_token_id) and the chat template (chat_template.jinja, or the one in tokenizer_config.json). All may be absent.
#include <fmt/format.h>

#include <algorithm>

#include "base/config/config.h"
#include "base/error.h"
#include "base/files/file.h"
#include "model/tokenizer/json_field.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

void check_end_token(const JsonField& field, int64_t id, TokenizerSpec& spec) {
  if (id < 0 || id > kMaxTokenId) field.refuse(fmt::format("wanted an id from 0 to {}, found {}", kMaxTokenId, id));
  spec.end_tokens.push_back(id);
}

void read_eos_token(const JsonField& field, TokenizerSpec& spec) {
  const std::string content = field.value().is_object() ? field.at("content").text() : field.text();
  const auto found = std::find_if(spec.added.begin(), spec.added.end(),
                                  [&](const AddedToken& token) { return token.content == content; });
  if (found != spec.added.end()) {
    spec.end_tokens.push_back(found->id);
    return;
  }
  const auto bytes = bytes_from_alphabet(content);
  for (size_t id = 0; id < spec.tokens.size(); ++id)
    if (spec.tokens[id].kind == Token::Kind::kBytes && spec.tokens[id].bytes == bytes) {
      spec.end_tokens.push_back(static_cast<int64_t>(id));
      return;
    }
  field.refuse(fmt::format("the tokenizer has no token {}", describe_text(content)));
}

// A text, or a list of named ones, of which we take the one named default.
void read_chat_template(const JsonField& field, TokenizerSpec& spec) {
  if (!field.value().is_array()) {
    spec.chat_template = field.text();
    return;
  }
  for (size_t i = 0; i < field.size(); ++i)
    if (field.at(i).at("name").text() == "default") spec.chat_template = field.at(i).at("template").text();
}

void read_config(const JsonField& file, TokenizerSpec& spec) {
  if (file.has("eos_token")) read_eos_token(file.at("eos_token"), spec);
  if (file.has("chat_template")) read_chat_template(file.at("chat_template"), spec);
}

void read_generation_config(const JsonField& file, TokenizerSpec& spec) {
  if (!file.has("eos_token_id")) return;
  const JsonField ids = file.at("eos_token_id");
  if (!ids.value().is_array()) return check_end_token(ids, ids.integer(), spec);
  for (size_t i = 0; i < ids.size(); ++i) check_end_token(ids.at(i), ids.at(i).integer(), spec);
}

}  // namespace

TokenizerSpec read_tokenizer_files(const std::filesystem::path& tokenizer_json) {
  TokenizerSpec spec = read_tokenizer_json(read_given_file(tokenizer_json, kMaxFileBytes), tokenizer_json.string());
  const std::filesystem::path folder = tokenizer_json.parent_path();
  const auto beside = [&](const char* name, void (*read)(const JsonField&, TokenizerSpec&)) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path)) return;
    const std::string origin = path.string();
    const Json json = parse_json_file(read_given_file(path, kMaxFileBytes), origin);
    read(JsonField(json, origin), spec);
  };
  beside("tokenizer_config.json", read_config);
  beside("generation_config.json", read_generation_config);
  const std::filesystem::path jinja = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja)) spec.chat_template = read_given_file(jinja, kMaxFileBytes);
  return spec;
}

}  // namespace faultline::model
