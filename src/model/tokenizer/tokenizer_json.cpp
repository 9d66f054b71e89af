#include <fmt/format.h>

#include "base/config/config.h"
#include "base/error.h"
#include "model/tokenizer/json_field.h"
#include "model/tokenizer/pretokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {
namespace {

[[noreturn]] void refuse_type(const JsonField& field, const std::string& wanted) {
  field.refuse(fmt::format("{} is not supported; wanted {}", describe_text(field.type()), wanted));
}

void read_normalizer(const JsonField& field, TokenizerSpec& spec, bool nested = false) {
  const std::string type = field.type();
  if (type == "NFC") {
    spec.nfc = true;
  } else if (type == "Sequence" && !nested) {
    const JsonField parts = field.at("normalizers");
    for (size_t i = 0; i < parts.size(); ++i) read_normalizer(parts.at(i), spec, true);
  } else {
    refuse_type(field, "NFC or a Sequence of it");
  }
}

WordStep read_split(const JsonField& field) {
  const JsonField pattern = field.at("pattern");
  if (!pattern.value().is_object() || !pattern.has("Regex")) pattern.refuse("wanted {\"Regex\": \"...\"}");
  if (field.at("behavior").text() != "Isolated")
    field.at("behavior")
        .refuse(fmt::format("{} is not supported; wanted 'Isolated'", describe_text(field.at("behavior").text())));
  if (field.at("invert").boolean()) field.at("invert").refuse("an inverted pattern is not supported");
  const std::string regex = pattern.at("Regex").text();
  return {.pattern = recognise_pattern(regex), .regex = regex};
}

void read_byte_level(const JsonField& field, TokenizerSpec& spec) {
  if (field.boolean_or("add_prefix_space", true)) field.refuse("'add_prefix_space' is not supported; wanted false");
  if (field.boolean_or("use_regex", true)) spec.steps.push_back({.pattern = WordPattern::kGpt2});
}

void read_pre_tokenizer(const JsonField& field, TokenizerSpec& spec) {
  const bool is_sequence = field.type() == "Sequence";
  const JsonField list = is_sequence ? field.at("pretokenizers") : field;
  const size_t count = is_sequence ? list.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const JsonField part = is_sequence ? list.at(i) : field;
    const std::string type = part.type();
    const bool last = i + 1 == count;
    if (type == "ByteLevel" && last) return read_byte_level(part, spec);
    if (type == "Split") {
      spec.steps.push_back(read_split(part));
    } else if (type == "Digits") {
      if (!part.boolean_or("individual_digits", false)) part.refuse("'individual_digits' false is not supported");
      spec.steps.push_back({.kind = WordStep::Kind::kDigits});
    } else {
      refuse_type(part, "Digits or Split, then ByteLevel at the end");
    }
  }
  field.refuse("ByteLevel must be the last pre-tokenizer: only byte-level tokenizers are supported");
}

void read_model(const JsonField& field, TokenizerSpec& spec, VocabularyBuilder& builder) {
  if (field.type() != "BPE") refuse_type(field, "BPE");
  field.require_map({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (field.boolean_or("byte_fallback", false)) field.at("byte_fallback").refuse("byte fallback is not supported");
  if (field.has("dropout") && field.at("dropout").value() != 0) field.at("dropout").refuse("dropout is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (field.has(key) && !field.at(key).text().empty()) field.at(key).refuse("only an empty one is supported");
  spec.ignore_merges = field.boolean_or("ignore_merges", false);
  const JsonField vocab = field.at("vocab");
  if (!vocab.value().is_object()) vocab.refuse("wanted a map from tokens to ids");
  for (const auto& [written, id] : vocab.value().items()) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokenId)) {
      builder.add_token(vocab.path(), written, id.get<int64_t>());
    } else {
      builder.add_token(child_path(vocab.path(), written), written, vocab.at(written).integer());
    }
  }
  const JsonField merges = field.at("merges");
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges.value()[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      builder.add_merge(merges.path(), merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
      continue;
    }
    const std::string text = merges.at(i).text();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      merges.at(i).refuse(fmt::format("wanted two tokens and a space between, found {}", describe_text(text)));
    builder.add_merge(merges.path(), text.substr(0, space), text.substr(space + 1));
  }
  if (field.has("unk_token") && !builder.has_all_bytes())
    field.at("unk_token").refuse("not supported where the vocabulary lacks some bytes' tokens");
}

void read_added_tokens(const JsonField& field, VocabularyBuilder& builder) {
  for (size_t i = 0; i < field.size(); ++i) {
    const JsonField entry = field.at(i);
    entry.require_map({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    builder.add_added_token(entry.path(), {.id = entry.at("id").integer(),
                                           .content = entry.at("content").text(),
                                           .single_word = entry.at("single_word").boolean(),
                                           .lstrip = entry.at("lstrip").boolean(),
                                           .rstrip = entry.at("rstrip").boolean(),
                                           .normalized = entry.at("normalized").boolean(),
                                           .special = entry.at("special").boolean()});
  }
}

// Tokens before the text are honoured; anything after it is refused.
void read_template(const JsonField& field, TokenizerSpec& spec) {
  const JsonField single = field.at("single");
  bool text_seen = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonField part = single.at(i);
    if (text_seen) part.refuse("only tokens before the text are supported");
    text_seen = part.has("Sequence");
    if (text_seen) continue;
    const std::string name = part.at("SpecialToken").at("id").text();
    const JsonField ids = field.at("special_tokens").at(name).at("ids");
    for (size_t k = 0; k < ids.size(); ++k) {
      const int64_t id = ids.at(k).integer();
      const bool known = id >= 0 && id < static_cast<int64_t>(spec.tokens.size()) &&
                         spec.tokens[static_cast<size_t>(id)].kind != Token::Kind::kNone;
      if (!known) ids.at(k).refuse(fmt::format("no token has the id {}", id));
      spec.prefix.push_back(id);
    }
  }
  if (!text_seen) single.refuse("the text itself is missing");
}

void read_post_processor(const JsonField& field, TokenizerSpec& spec, bool nested = false) {
  const std::string type = field.type();
  if (type == "ByteLevel") return;  // trims offsets, which we do not give
  if (type == "TemplateProcessing") return read_template(field, spec);
  if (type != "Sequence" || nested) refuse_type(field, "ByteLevel, TemplateProcessing or a Sequence of them");
  const JsonField parts = field.at("processors");
  for (size_t i = 0; i < parts.size(); ++i) read_post_processor(parts.at(i), spec, true);
}

}  // namespace

TokenizerSpec read_tokenizer_json(std::string_view text, const std::string& origin) {
  const Json json = parse_json_file(text, origin);
  const JsonField file(json, origin);
  file.require_map({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                    "decoder", "model"});
  for (const char* key : {"truncation", "padding"})
    if (file.has(key)) file.at(key).refuse("not supported; wanted null");
  TokenizerSpec spec;
  spec.origin = origin;
  VocabularyBuilder builder(spec);
  read_model(file.at("model"), spec, builder);
  if (file.has("added_tokens")) read_added_tokens(file.at("added_tokens"), builder);
  if (file.has("normalizer")) read_normalizer(file.at("normalizer"), spec);
  if (!file.has("pre_tokenizer")) file.refuse("the key 'pre_tokenizer' is missing: only byte-level ones are supported");
  read_pre_tokenizer(file.at("pre_tokenizer"), spec);
  if (file.has("post_processor")) read_post_processor(file.at("post_processor"), spec);
  if (!file.has("decoder")) file.refuse("the key 'decoder' is missing; wanted ByteLevel");
  if (file.at("decoder").type() != "ByteLevel") refuse_type(file.at("decoder"), "ByteLevel");
  return spec;
}

}  // namespace faultline::model
