#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "model/tokenizer/unicode.h"

namespace faultline::model {
namespace {

bool is_class(unicode::CodePoint point, unicode::Class wanted) {
  return (unicode::class_table()[point.value] & wanted) != 0;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), token_at_{-1} {
  for (size_t index = 0; index < tokens_.size(); ++index) {
    uint32_t node = 0;
    for (const char c : tokens_[index].content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto next = static_cast<uint32_t>(token_at_.size());
      const auto [child, is_new] = children_.emplace(uint64_t{node} << 8 | byte, next);
      if (is_new) token_at_.push_back(-1);
      node = child->second;
    }
    if (node == 0) continue;  // normalisation left nothing of it
    first_bytes_.set(static_cast<unsigned char>(tokens_[index].content[0]));
    token_at_[node] = static_cast<int32_t>(index);
  }
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t from) const {
  for (size_t start = from; start < text.size(); ++start) {
    if (!first_bytes_[static_cast<unsigned char>(text[start])]) continue;
    Match longest;
    uint32_t node = 0;
    for (size_t at = start; at < text.size(); ++at) {
      const auto child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
      if (child == children_.end()) break;
      node = child->second;
      if (token_at_[node] >= 0) longest = {&tokens_[static_cast<size_t>(token_at_[node])], start, at + 1};
    }
    if (longest.token != nullptr) return longest;
  }
  return {};
}

bool AddedTokens::accept(std::string_view text, bool parse_special, size_t taken, Match& match) const {
  const AddedToken& token = *match.token;
  if (token.special && !parse_special) return false;
  const std::string_view before = text.substr(0, match.start);
  const std::string_view after = text.substr(match.stop);
  if (token.single_word) {
    if (!before.empty() && is_class(unicode::decode_last(before), unicode::kWord)) return false;
    if (!after.empty() && is_class(unicode::decode(after.data()), unicode::kWord)) return false;
  }
  if (token.lstrip) {
    while (match.start > taken) {
      const unicode::CodePoint last = unicode::decode_last(text.substr(0, match.start));
      if (!is_class(last, unicode::kSpace)) break;
      match.start -= last.length;
    }
  }
  if (token.rstrip) {
    while (match.stop < text.size()) {
      const unicode::CodePoint next = unicode::decode(text.data() + match.stop);
      if (!is_class(next, unicode::kSpace)) break;
      match.stop += next.length;
    }
  }
  return true;
}

}  // namespace faultline::model
