// What a Tokenizer holds: the spec it was read into and the machines made of it.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/chat.h"
#include "model/tokenizer/pretokenizer.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {

struct Tokenizer::State {
  explicit State(TokenizerSpec made);
  State(const State&) = delete;  // bpe looks into spec
  State& operator=(const State&) = delete;

  TokenizerSpec spec;
  Bpe bpe;
  Pretokenizer pretokenizer;
  AddedTokens added_raw;         // looked for in the text as it came
  AddedTokens added_normalized;  // looked for after normalisation
  std::optional<ChatFormat> chat;
  std::unordered_map<std::string, int64_t> ids_of_text;  // tokens that are not of the byte alphabet, and added ones
};

}  // namespace faultline::model
