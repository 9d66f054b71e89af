#include "train/actor.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"

namespace faultline::train {
namespace {

constexpr int64_t kHeadElementsCpu = int64_t{1} << 24, kHeadElementsCuda = int64_t{1} << 28;  // logits at a time

struct Piece {
  at::Tensor log_probabilities;  // (p) fp32, with gradient if it is wanted
  at::Tensor entropies;          // (p) fp32
};

Piece score_piece(const model::CausalLm& model, const at::Tensor& hidden, const at::Tensor& targets,
                  double temperature) {
  at::Tensor logits = model.head(hidden).to(at::kFloat);
  if (temperature != 0 && temperature != 1) logits = logits / temperature;
  const at::Tensor all = at::log_softmax(logits, -1);  // (p, vocabulary) fp32
  Piece piece{all.gather(1, targets.unsqueeze(1)).squeeze(1), {}};
  const at::NoGradGuard no_gradients;
  piece.entropies = -(all.exp() * all).sum(-1);
  return piece;
}

template <class Function>
void over_pieces(int64_t count, int64_t most, Function&& function) {
  for (int64_t first = 0; first < count; first += most) function(first, std::min(most, count - first));
}

}  // namespace

int64_t head_positions(const model::CausalLm& model) {
  const int64_t elements = model.device().is_cuda() ? kHeadElementsCuda : kHeadElementsCpu;
  return std::max<int64_t>(1, elements / model.config().vocabulary);
}

SequenceBatch make_batch(std::span<const Sequence> sequences, const at::Device& device) {
  std::size_t width = 0, responses = 0;
  for (const Sequence& sequence : sequences) {
    FL_ASSERT(!sequence.prompt.empty() && !sequence.response.empty());
    width = std::max(width, sequence.prompt.size() + sequence.response.size() - 1);
    responses += sequence.response.size();
  }
  const auto length = static_cast<int64_t>(width), count = static_cast<int64_t>(responses);
  at::Tensor tokens = at::zeros({std::ssize(sequences), length}, at::kLong);
  at::Tensor rows = at::empty({count}, at::kLong), targets = at::empty({count}, at::kLong);
  int64_t *token = tokens.mutable_data_ptr<int64_t>(), *row = rows.mutable_data_ptr<int64_t>(),
          *target = targets.mutable_data_ptr<int64_t>();
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const auto& [prompt, response] = sequences[b];
    int64_t* end = std::copy(prompt.begin(), prompt.end(), token + static_cast<int64_t>(b) * length);
    std::copy(response.begin(), response.end() - 1, end);
    for (std::size_t i = 0; i < response.size(); ++i) {
      *row++ = static_cast<int64_t>(b) * length + static_cast<int64_t>(prompt.size() - 1 + i);
      *target++ = response[i];
    }
  }
  return {tokens.to(device), rows.to(device), targets.to(device)};
}

TokenScores score_tokens(const model::CausalLm& model, const SequenceBatch& batch, double temperature,
                         int64_t positions) {
  const at::NoGradGuard no_gradients;
  const at::Tensor hidden = model.body(batch.tokens).index_select(0, batch.rows);
  std::vector<at::Tensor> log_probabilities, entropies;
  over_pieces(hidden.size(0), positions > 0 ? positions : head_positions(model), [&](int64_t first, int64_t count) {
    const Piece piece =
        score_piece(model, hidden.narrow(0, first, count), batch.targets.narrow(0, first, count), temperature);
    log_probabilities.push_back(piece.log_probabilities), entropies.push_back(piece.entropies);
  });
  return {at::cat(log_probabilities), at::cat(entropies)};
}

BackwardResult backward_tokens(const model::CausalLm& model, const SequenceBatch& batch, double temperature,
                               const PartialLoss& loss, int64_t positions) {
  const at::AutoGradMode gradients(true);
  const at::Tensor hidden = model.body(batch.tokens).index_select(0, batch.rows);  // (P, hidden)
  const bool body_learns = hidden.requires_grad();
  const at::Tensor cut = hidden.detach().set_requires_grad(body_learns);
  std::vector<at::Tensor> log_probabilities, entropies;
  at::Tensor sum = at::zeros({}, hidden.options().dtype(at::kDouble));
  over_pieces(hidden.size(0), positions > 0 ? positions : head_positions(model), [&](int64_t first, int64_t count) {
    const Piece piece =
        score_piece(model, cut.narrow(0, first, count), batch.targets.narrow(0, first, count), temperature);
    const at::Tensor part = loss(piece.log_probabilities, first);
    if (part.requires_grad()) part.backward();
    sum += part.detach().to(at::kDouble);
    log_probabilities.push_back(piece.log_probabilities.detach()), entropies.push_back(piece.entropies);
  });
  if (body_learns) hidden.backward(cut.grad());
  return {sum, {at::cat(log_probabilities), at::cat(entropies)}};
}

}  // namespace faultline::train
