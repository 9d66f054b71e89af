// The tokenizer of a GGUF file in Hugging Face's form: tokenizer.json, tokenizer_config.json, generation_config.json.
// Only the kinds whose cutting of words we know exactly: byte-level BPE ("gpt2") with the pre-tokenizer smollm or
// qwen2.
#pragma once

#include "model/gguf.h"
#include "record/json_text.h"

namespace faultline {

// What differs between the tokenizer.json files that we write.
struct TokenizerParts {
  Json added_tokens, normalizer, pre_tokenizer, decoder, vocabulary, merges;
};
Json byte_level_bpe_json(TokenizerParts parts);

// UsageError naming file and key.
Json tokenizer_json(const GgufFile& file);
Json tokenizer_config_json(const GgufFile& file);
Json generation_config_json(const GgufFile& file);

}  // namespace faultline
