// Reads tokenizer.json and the files beside it. Strict: what we cannot do exactly (another model, normaliser,
// pre-tokenizer, an unknown key) is refused by its name and its path in the file, because a step that is skipped gives
// other ids without a word.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "model/tokenizer_spec.h"

namespace faultline {

// `origin` names the file in messages. UsageError for anything that is not supported or damaged.
TokenizerSpec read_tokenizer_json(std::string_view text, const std::string& origin);

// Reads the file, then tokenizer_config.json, chat_template.jinja and generation_config.json where they exist.
TokenizerSpec read_tokenizer_files(const std::filesystem::path& tokenizer_json);

}  // namespace faultline
