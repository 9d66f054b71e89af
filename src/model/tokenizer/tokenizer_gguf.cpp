#include <fmt/format.h>

#include <array>
#include <span>

#include "base/config/config.h"
#include "base/error.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace {

struct NamedPretokenizer {
  const char* name;
  bool digits;  // isolated first
  WordPattern pattern;
  bool nfc;
  bool ignore_merges;
};
constexpr std::array<NamedPretokenizer, 4> kPretokenizers = {{
    {"smollm", true, WordPattern::kGpt2, false, false},
    {"gpt-2", false, WordPattern::kGpt2, false, false},
    {"qwen2", false, WordPattern::kQwen2, true, false},  // NFC: in Hugging Face's file, though llama.cpp leaves it out
    {"llama-bpe", false, WordPattern::kLlama3, false, true},
}};

class Values {
 public:
  Values(const std::map<std::string, GgufValue>& values, const std::string& origin)
      : values_(values), origin_(origin) {}

  template <class T>
  const T* find(const std::string& key, const char* wanted) const {
    const auto found = values_.find("tokenizer." + key);
    if (found == values_.end()) return nullptr;
    if (const T* value = std::get_if<T>(&found->second)) return value;
    refuse(key, fmt::format("wanted {}", wanted));
  }
  template <class T>
  const T& get(const std::string& key, const char* wanted) const {
    if (const T* value = find<T>(key, wanted)) return *value;
    refuse(key, fmt::format("the key is missing; wanted {}", wanted));
  }
  std::optional<int64_t> id(const std::string& key, size_t token_count) const {
    const int64_t* found = find<int64_t>(key, "an integer");
    if (found == nullptr) return std::nullopt;
    if (*found < 0 || *found >= static_cast<int64_t>(token_count))
      refuse(key, fmt::format("no token has the id {}", *found));
    return *found;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& complaint) const {
    throw UsageError(fmt::format("{}: tokenizer.{}: {}", origin_, key, complaint));
  }

 private:
  const std::map<std::string, GgufValue>& values_;
  const std::string& origin_;
};

const NamedPretokenizer& pretokenizer_of(const Values& values) {
  const auto& name = values.get<std::string>("ggml.pre", "the pre-tokenizer's name");
  for (const NamedPretokenizer& known : kPretokenizers)
    if (name == known.name) return known;
  values.refuse("ggml.pre",
                fmt::format("{} is not supported; known: smollm, gpt-2, qwen2, llama-bpe", describe_text(name)));
}

void read_tokens(const Values& values, VocabularyBuilder& builder) {
  const auto& tokens = values.get<std::vector<std::string>>("ggml.tokens", "a list of strings");
  const auto& types = values.get<std::vector<int64_t>>("ggml.token_type", "a list of integers");
  if (types.size() != tokens.size())
    values.refuse("ggml.token_type", fmt::format("{} types for {} tokens", types.size(), tokens.size()));
  if (tokens.empty()) values.refuse("ggml.tokens", "the list is empty");
  for (size_t id = 0; id < tokens.size(); ++id)
    builder.add_token(fmt::format("tokenizer.ggml.tokens[{}]", id), tokens[id], static_cast<int64_t>(id));
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = types[id];
    if (type == GgufTokenType::kNormal || type == GgufTokenType::kUnused) continue;
    if (type != GgufTokenType::kUnknown && type != GgufTokenType::kControl && type != GgufTokenType::kUserDefined)
      values.refuse(fmt::format("ggml.token_type[{}]", id), fmt::format("the type {} is not supported", type));
    builder.add_added_token(
        fmt::format("tokenizer.ggml.tokens[{}]", id),
        {.id = static_cast<int64_t>(id), .content = tokens[id], .special = type != GgufTokenType::kUserDefined});
  }
}

void read_merges(const Values& values, VocabularyBuilder& builder) {
  const auto& merges = values.get<std::vector<std::string>>("ggml.merges", "a list of strings");
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ');
    if (space == std::string::npos || merges[i].find(' ', space + 1) != std::string::npos)
      values.refuse(fmt::format("ggml.merges[{}]", i),
                    fmt::format("wanted two tokens and a space between, found {}", describe_text(merges[i])));
    builder.add_merge(fmt::format("tokenizer.ggml.merges[{}]", i), merges[i].substr(0, space),
                      merges[i].substr(space + 1));
  }
}

}  // namespace

TokenizerSpec read_tokenizer_values(const std::map<std::string, GgufValue>& map, const std::string& origin) {
  const Values values(map, origin);
  const auto& model = values.get<std::string>("ggml.model", "'gpt2'");
  if (model != "gpt2")
    values.refuse("ggml.model",
                  fmt::format("{} is not supported; wanted 'gpt2', which is byte-level BPE", describe_text(model)));
  const NamedPretokenizer& named = pretokenizer_of(values);
  TokenizerSpec spec;
  spec.origin = origin;
  spec.nfc = named.nfc;
  spec.ignore_merges = named.ignore_merges;
  if (named.digits) spec.steps.push_back({.kind = WordStep::Kind::kDigits});
  spec.steps.push_back({.pattern = named.pattern});
  VocabularyBuilder builder(spec);
  read_tokens(values, builder);
  read_merges(values, builder);
  for (const char* key : {"ggml.eos_token_id", "ggml.eot_token_id"})
    if (const auto id = values.id(key, spec.tokens.size())) spec.end_tokens.push_back(*id);
  const bool* space = values.find<bool>("ggml.add_space_prefix", "true or false");
  if (space != nullptr && *space) values.refuse("ggml.add_space_prefix", "true is not supported");
  const bool* add_bos = values.find<bool>("ggml.add_bos_token", "true or false");
  if (add_bos != nullptr && *add_bos) {
    const auto bos = values.id("ggml.bos_token_id", spec.tokens.size());
    if (!bos) values.refuse("ggml.bos_token_id", "the key is missing, though add_bos_token is true");
    spec.prefix.push_back(*bos);
  }
  const bool* add_eos = values.find<bool>("ggml.add_eos_token", "true or false");
  if (add_eos != nullptr && *add_eos) values.refuse("ggml.add_eos_token", "true is not supported");
  if (const auto* chat = values.find<std::string>("chat_template", "a string")) spec.chat_template = *chat;
  return spec;
}

// Apart from the other factory, so that what needs no GGUF file does not link the reader of them.

Tokenizer Tokenizer::from_gguf(const GgufFile& file) {
  return from_spec(read_tokenizer_values(file.values(), file.path().string()));
}

}  // namespace faultline::model
