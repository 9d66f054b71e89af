#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace {

constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const GgufFile& file, const std::string& key, const std::string& complaint) {
  throw UsageError(fmt::format("{}: {}: {}", file.path().string(), key, complaint));
}

std::optional<int64_t> token_id(const GgufFile& file, const std::string& which) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", which);
  if (file.find(key) == nullptr) return std::nullopt;
  const int64_t id = file.integer(key);
  if (id < 0 || id >= std::ssize(file.texts("tokenizer.ggml.tokens"))) {
    refuse(file, key, fmt::format("{} is not a token", id));
  }
  return id;
}

Json byte_level(bool pattern) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", pattern}};
}

Json pre_tokenizer(const GgufFile& file) {
  const std::string& kind = file.text("tokenizer.ggml.pre");
  Json first;
  if (kind == "smollm") {
    first = {{"type", "Digits"}, {"individual_digits", true}};
  } else if (kind == "qwen2") {
    first = {{"type", "Split"}, {"pattern", {{"Regex", kQwenPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  } else {
    refuse(file, "tokenizer.ggml.pre", fmt::format("'{}' is not supported (smollm, qwen2)", kind));
  }
  return {{"type", "Sequence"}, {"pretokenizers", {first, byte_level(kind == "smollm")}}};
}

Json merges(const GgufFile& file) {
  Json pairs = Json::array();
  for (const std::string& merge : file.texts("tokenizer.ggml.merges")) {
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == merge.size()) {
      refuse(file, "tokenizer.ggml.merges", fmt::format("'{}' is not two tokens", merge));
    }
    pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return pairs;
}

const std::vector<int64_t>& token_types(const GgufFile& file) {
  const GgufValue* value = file.find("tokenizer.ggml.token_type");
  const auto* types = value == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(value);
  if (types == nullptr || types->size() != file.texts("tokenizer.ggml.tokens").size()) {
    refuse(file, "tokenizer.ggml.token_type", "wanted a type for each token");
  }
  return *types;
}

Json added_tokens(const GgufFile& file) {
  const auto& tokens = file.texts("tokenizer.ggml.tokens");
  const auto& types = token_types(file);
  Json added = Json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] != GgufTokenType::kControl && types[id] != GgufTokenType::kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", types[id] == GgufTokenType::kControl}});
  }
  return added;
}

}  // namespace

Json byte_level_bpe_json(TokenizerParts parts) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(parts.added_tokens)},
          {"normalizer", std::move(parts.normalizer)},
          {"pre_tokenizer", std::move(parts.pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", std::move(parts.decoder)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(parts.vocabulary)},
            {"merges", std::move(parts.merges)}}}};
}

Json tokenizer_json(const GgufFile& file) {
  const std::string& model = file.text("tokenizer.ggml.model");
  if (model != "gpt2") refuse(file, "tokenizer.ggml.model", fmt::format("'{}' is not supported, only gpt2", model));
  Json vocabulary = Json::object();
  const auto& tokens = file.texts("tokenizer.ggml.tokens");
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!vocabulary.emplace(tokens[id], id).second) {
      refuse(file, "tokenizer.ggml.tokens", fmt::format("'{}' occurs twice", tokens[id]));
    }
  }
  const bool qwen = file.text("tokenizer.ggml.pre") == "qwen2";
  return byte_level_bpe_json({.added_tokens = added_tokens(file),
                              .normalizer = qwen ? Json{{"type", "NFC"}} : Json(),
                              .pre_tokenizer = pre_tokenizer(file),
                              .decoder = byte_level(true),
                              .vocabulary = std::move(vocabulary),
                              .merges = merges(file)});
}

Json tokenizer_config_json(const GgufFile& file) {
  const auto& tokens = file.texts("tokenizer.ggml.tokens");
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"clean_up_tokenization_spaces", false},
               {"model_max_length", file.integer(file.text("general.architecture") + ".context_length")}};
  for (const auto& [which, field] :
       {std::pair("bos", "bos_token"), {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}}) {
    if (const auto id = token_id(file, which)) json[field] = tokens[static_cast<std::size_t>(*id)];
  }
  if (file.find("tokenizer.chat_template") != nullptr) json["chat_template"] = file.text("tokenizer.chat_template");
  return json;
}

Json generation_config_json(const GgufFile& file) {
  Json json = Json::object();
  for (const auto& [which, field] :
       {std::pair("bos", "bos_token_id"), {"eos", "eos_token_id"}, {"padding", "pad_token_id"}}) {
    if (const auto id = token_id(file, which)) json[field] = *id;
  }
  return json;
}

}  // namespace faultline::model
