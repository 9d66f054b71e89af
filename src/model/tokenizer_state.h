// What a Tokenizer holds: the spec it was read into and the machines made of it.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/chat.h"
#include "model/pretokenizer.h"
#include "model/tokenizer.h"
#include "model/tokenizer_spec.h"

namespace faultline {

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

}  // namespace faultline
