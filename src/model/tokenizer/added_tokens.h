// Added tokens are cut out of the text before it is pre-tokenized: at each place the longest that starts there, the
// leftmost first, as Hugging Face's tokenizers do, in two rounds. The first looks in the text as it came, the second
// for those marked `normalized` in the normalised pieces between.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);  // `content` as it is to be found

  bool empty() const { return tokens_.empty(); }
  // Calls piece(text) for what lies between and token(id) for each found, in order. Without `parse_special` special
  // tokens are text.
  template <class Piece, class Found>
  void split(std::string_view text, bool parse_special, const Piece& piece, const Found& token) const;

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t start = 0;
    size_t stop = 0;
  };
  // The next at or after `from`, as it is written, before any flag is looked at.
  Match find(std::string_view text, size_t from) const;
  // False: not a word of its own, not wanted. Widens the match over the white space it strips.
  bool accept(std::string_view text, bool parse_special, size_t taken, Match& match) const;

  std::vector<AddedToken> tokens_;
  std::bitset<256> first_bytes_;
  std::unordered_map<uint64_t, uint32_t> children_;  // node << 8 | byte -> node; 0 is the root
  std::vector<int32_t> token_at_;                    // node -> index into tokens_, or -1
};

template <class Piece, class Found>
void AddedTokens::split(std::string_view text, bool parse_special, const Piece& piece, const Found& token) const {
  size_t taken = 0;  // everything before has been reported
  for (size_t from = 0; !empty();) {
    Match match = find(text, from);
    if (match.token == nullptr) break;
    from = match.stop;
    if (!accept(text, parse_special, taken, match)) continue;
    if (taken < match.start) piece(text.substr(taken, match.start - taken));
    token(match.token->id);
    taken = match.stop;
  }
  if (taken < text.size()) piece(text.substr(taken));
}

}  // namespace faultline::model
