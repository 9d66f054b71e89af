// Which token each row of a forward is. A row is known by all tokens of its sequence up to itself: a causal model
// computes the same there whatever else stands in the batch, so rows of two engines belong together where these are
// equal, padded or packed, filled at once or decoded one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace faultline::diagnose {

std::vector<int64_t> on_host(const at::Tensor& x);  // integers

struct TokenRows {
  std::vector<uint64_t> keys;      // by row; 0: padding, or not known
  std::vector<int64_t> tokens;     // by row
  std::vector<int64_t> positions;  // in its sequence
  std::vector<int64_t> following;  // the row of the sequence's next token; -1: none

  struct End {
    uint64_t key;
    int64_t position;
  };
  std::vector<End> ends;  // of the sequences, for the next forward of kind decode
};

// tokens: (B, T), or (N) with positions; mask: (B, at least T), 0 where a token is padding.
TokenRows token_rows(const std::string& kind, const at::Tensor& tokens, const at::Tensor& mask,
                     const at::Tensor& positions, const TokenRows& before);

inline constexpr std::size_t kSampledSequences = 64;

// So many rows of known tokens, but one of each of the first 64 sequences; sorted. A sequence's are the same wherever
// it runs, alone or in a batch.
std::vector<int64_t> chosen_rows(const TokenRows& rows, int64_t most);

}  // namespace faultline::diagnose
