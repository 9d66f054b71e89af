#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/text.h"

namespace faultline::model {
namespace {

constexpr size_t kShortWord = 48;  // symbols; below, looking at all pairs again is faster than a queue

size_t table_size(size_t entries) { return std::bit_ceil(entries * 2 + 2); }
uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::vector<Token>& tokens, const std::vector<Merge>& merges, bool ignore_merges)
    : tokens_(tokens),
      ignore_merges_(ignore_merges),
      rules_(table_size(merges.size())),
      words_(table_size(tokens.size()), -1),
      whole_(tokens.size()) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].kind != Token::Kind::kBytes) continue;
    size_t at = hash64(tokens[id].bytes) & (words_.size() - 1);
    while (words_[at] >= 0) at = (at + 1) & (words_.size() - 1);
    words_[at] = static_cast<int32_t>(id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = find({&c, 1}).value_or(-1);
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) add_rule(merges[rank], static_cast<int32_t>(rank));
}

void Bpe::add_rule(const Merge& merge, int32_t rank) {
  const uint64_t pair = pair_of(merge.left, merge.right);
  size_t at = mix64(0, pair) & (rules_.size() - 1);
  while (rules_[at].pair != kNoPair && rules_[at].pair != pair) at = (at + 1) & (rules_.size() - 1);
  rules_[at] = {pair, rank, merge.result};  // a pair that is named twice has its last rank, as in Hugging Face's
}

const Bpe::Rule* Bpe::rule(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t at = mix64(0, pair) & (rules_.size() - 1);; at = (at + 1) & (rules_.size() - 1)) {
    if (rules_[at].pair == pair) return &rules_[at];
    if (rules_[at].pair == kNoPair) return nullptr;
  }
}

std::optional<int32_t> Bpe::find(std::string_view bytes) const {
  for (size_t at = hash64(bytes) & (words_.size() - 1); words_[at] >= 0; at = (at + 1) & (words_.size() - 1))
    if (tokens_[static_cast<size_t>(words_[at])].bytes == bytes) return words_[at];
  return std::nullopt;
}

void Bpe::encode_bytes(std::string_view bytes, std::vector<int64_t>& ids) const {
  for (const char c : bytes)
    if (const int32_t id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) ids.push_back(id);
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids) const {
  const std::optional<int32_t> known = find(word);
  std::atomic<Whole>* whole = known ? &whole_[static_cast<size_t>(*known)] : nullptr;
  if (known && (ignore_merges_ || whole->load(std::memory_order_relaxed) == Whole::kYes)) {
    ids.push_back(*known);
    return;
  }
  static thread_local std::vector<int32_t> symbols;
  symbols.clear();
  for (const char c : word)
    if (const int32_t id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) symbols.push_back(id);
  if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  if (whole != nullptr)
    whole->store(symbols.size() == 1 && symbols[0] == *known ? Whole::kYes : Whole::kNo, std::memory_order_relaxed);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  const Rule* rules[kShortWord] = {};  // of each symbol with the next
  for (size_t i = 0; i + 1 < symbols.size(); ++i) rules[i] = rule(symbols[i], symbols[i + 1]);
  while (symbols.size() > 1) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      if (rules[i] != nullptr && (best == symbols.size() || rules[i]->rank < rules[best]->rank)) best = i;
    if (best == symbols.size()) return;
    symbols[best] = rules[best]->result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i + 1 < symbols.size(); ++i) rules[i] = rules[i + 1];
    if (best > 0) rules[best - 1] = rule(symbols[best - 1], symbols[best]);
    if (best + 1 < symbols.size()) rules[best] = rule(symbols[best], symbols[best + 1]);
  }
}

void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    int32_t rank, place, result;
    bool operator<(const Candidate& other) const {  // std::priority_queue gives the largest first
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Symbol> chain(symbols.size());
  std::priority_queue<Candidate> queue;
  const auto propose = [&](int32_t place) {
    if (place < 0 || chain[place].next < 0) return;
    if (const Rule* found = rule(chain[place].id, chain[chain[place].next].id))
      queue.push({found->rank, place, found->result});
  };
  for (int32_t i = 0; i < count; ++i) chain[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
  for (int32_t i = 0; i < count; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = chain[top.place];
    if (left.id < 0 || left.next < 0) continue;  // merged away since
    Symbol& right = chain[left.next];
    const Rule* still = rule(left.id, right.id);
    if (still == nullptr || still->rank != top.rank) continue;
    left.id = top.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) chain[left.next].previous = top.place;
    propose(left.previous);
    propose(top.place);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = chain[i].next) symbols.push_back(chain[i].id);
}

}  // namespace faultline::model
