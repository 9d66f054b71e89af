// The device side of generation: what each slot is doing, and the step that moves all of them one token on. Nothing in
// step() waits for the device or allocates by size of the data, so it can be captured into a graph and replayed.
#pragma once

#include "model/causal_lm.h"
#include "model/generate.h"

namespace faultline::model {

struct DecodeBatch {
  DecodeBatch(const CausalLm& model, int64_t slots, int64_t context, int64_t budget,
              const std::vector<int64_t>& end_tokens);

  // Slot s continues this sequence, whose prompt but for the last token is in the cache.
  struct Start {
    int64_t slot, last_token, length, max_new_tokens;
    uint64_t key;
    Sampling sampling;
  };
  void start(const std::vector<Start>& starts);
  void step(const CausalLm& model);
  void move_slot(int64_t from, int64_t to, int64_t length);
  DecodeBatch narrowed(int64_t slots) const;  // the first slots; shares memory

  KvCache cache;
  at::Tensor token, length;       // (slots) int64: the token to be decoded, and how many are in the cache before it
  at::Tensor count, limit;        // (slots) int64: tokens made, tokens allowed
  at::Tensor active;              // (slots) bool
  at::Tensor key, top_k;          // (slots) int64
  at::Tensor temperature, top_p;  // (slots) fp32
  at::Tensor tokens, log_probabilities;  // (slots, budget): what was made
  at::Tensor ends;                       // (end tokens) int64

 private:
  DecodeBatch() = default;
};

}  // namespace faultline::model
