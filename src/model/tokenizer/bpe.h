// Byte-pair merges: a word's bytes become tokens, then the most eager merge is applied, the leftmost of equals, until
// none is left. Two decisions shape it. Long words keep their merges in a queue, so that a word of a megabyte costs
// n log n. And the cache is the vocabulary: most words are one token, and whether a token's bytes merge into itself is
// found out once and remembered in a flag, without a lock and without growing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace faultline::model {

class Bpe {
 public:
  Bpe(const std::vector<Token>& tokens, const std::vector<Merge>& merges, bool ignore_merges);

  // Appends the ids of a word. A byte the vocabulary has no token for is left out.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;
  // One id for each byte, no merges.
  void encode_bytes(std::string_view bytes, std::vector<int64_t>& ids) const;
  std::optional<int32_t> find(std::string_view bytes) const;  // the token of the byte alphabet with these bytes

 private:
  struct Rule {  // of a pair of ids
    uint64_t pair = kNoPair;
    int32_t rank = 0;
    int32_t result = 0;
  };
  struct Symbol {
    int32_t id, previous, next;  // neighbours by index; -1: none
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  const Rule* rule(int32_t left, int32_t right) const;
  void add_rule(const Merge& merge, int32_t rank);
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  const std::vector<Token>& tokens_;
  bool ignore_merges_;
  std::vector<Rule> rules_;     // open addressing, a power of two
  std::vector<int32_t> words_;  // open addressing: hash of the bytes -> id, or -1
  int32_t byte_ids_[256];       // -1: no token
  enum class Whole : uint8_t { kUnknown, kYes, kNo };
  mutable std::vector<std::atomic<Whole>> whole_;  // id -> do its bytes merge into it?
};

}  // namespace faultline::model
