// The training forward: prompts with their responses as padded rows, log-probabilities of the response tokens in fp32,
// and the backward of a loss made of them. The head works on a bounded number of positions at a time, forward and
// backward, so that logits never stand in memory all at once; the gradient is that of the undivided loss, because the
// loss is a sum over tokens (Note [Token weights] in grpo.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/causal_lm.h"

namespace faultline::train {

struct Sequence {
  std::span<const int64_t> prompt, response;  // both at least one token
};

// The P response tokens of B sequences, row by row.
struct SequenceBatch {
  at::Tensor tokens;   // (B, T) int64, padding behind; the last token of a sequence predicts nothing
  at::Tensor rows;     // (P) int64: which of the B * T hidden states predicts it
  at::Tensor targets;  // (P) int64: the token
};
SequenceBatch make_batch(std::span<const Sequence> sequences, const at::Device& device);

struct TokenScores {
  at::Tensor log_probabilities, entropies;  // (P) fp32, at the temperature given, without gradient
};

// How many positions the head takes at a time: so many that their logits fit a fixed amount of memory.
int64_t head_positions(const model::CausalLm& model);

// Without gradient. temperature 0 counts as 1, as in sampling. positions: of a piece; 0: head_positions
TokenScores score_tokens(const model::CausalLm& model, const SequenceBatch& batch, double temperature,
                         int64_t positions = 0);

// log_probabilities: (p) fp32 of tokens first ... first + p - 1; -> their part of the loss
using PartialLoss = std::function<at::Tensor(const at::Tensor& log_probabilities, int64_t first)>;
struct BackwardResult {
  at::Tensor loss;  // () fp64 on the model's device
  TokenScores scores;
};
// Adds the gradient to the parameters' .grad.
BackwardResult backward_tokens(const model::CausalLm& model, const SequenceBatch& batch, double temperature,
                               const PartialLoss& loss, int64_t positions = 0);

// LoRA: low-rank adapters on chosen linears, trained in place of the model's weights. The second factor starts at zero,
// so an adapted model begins as the model itself. Adapters sit on linears as the model has them: q, k and v share one.

struct LoraSpec {
  int64_t rank = 0;  // 0: none, all weights are trained
  double alpha = 16;
  std::vector<std::string>
      targets;  // last names of linears: qkv_proj, o_proj, gate_up_proj, down_proj; empty: all four
};

// Adds adapters and returns them as parameters, in the model's order. UsageError where a target names no linear.
std::vector<model::CausalLm::Parameter> add_lora(model::CausalLm& model, const LoraSpec& spec, uint64_t seed);
// weight + scale * up * down, rounded once; the adapters are gone afterwards.
void merge_lora(model::CausalLm& model);

}  // namespace faultline::train
