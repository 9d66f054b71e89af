// Reads a tokenizer from the values of a GGUF file. GGUF names the pre-tokenizer instead of spelling it; the names we
// know are below, with what Hugging Face's own files for these models say. A name we do not know is refused: the wrong
// pattern gives other ids without a word.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/gguf.h"
#include "model/tokenizer_spec.h"

namespace faultline {

struct GgufTokenType {  // of tokenizer.ggml.token_type
  enum : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };
};

TokenizerSpec read_tokenizer_values(const std::map<std::string, GgufValue>& values, const std::string& origin);

}  // namespace faultline
