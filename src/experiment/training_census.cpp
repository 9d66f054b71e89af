#include "experiment/training_census.h"

#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <tuple>

#include "site/phase_guard.h"
#include "train/step.h"

namespace faultline {
namespace {

constexpr int64_t kPromptTokens = 5, kResponseTokens = 8;

template <class Function>
Census census_of(const Function& run) {
  begin_census();
  try {
    run();
  } catch (...) {
    end_census();
    throw;
  }
  return end_census();
}

// a * first + b * second, entry by entry.
Census combined(int64_t a, const Census& first, int64_t b, const Census& second) {
  std::map<std::tuple<std::string, PlaceId, Phase>, CensusEntry> sums;
  for (const auto& [factor, census] : {std::pair(a, &first), std::pair(b, &second)}) {
    for (const CensusEntry& entry : *census) {
      CensusEntry& sum = sums[{entry.name, entry.place, entry.phase}];
      if (sum.name.empty()) sum = {entry.name, entry.place, entry.phase, 0, 0, 0, entry.shapes};
      sum.calls += factor * entry.calls, sum.writes += factor * entry.writes, sum.routed += factor * entry.routed;
      sum.flops += static_cast<double>(factor) * entry.flops, sum.bytes += static_cast<double>(factor) * entry.bytes;
    }
  }
  Census census;
  for (auto& [key, entry] : sums) {
    if (entry.calls != 0) census.push_back(std::move(entry));
  }
  return census;
}

void append(Censuses& all, ForwardKind kind, const Census& census) {
  all[kind].insert(all[kind].end(), census.begin(), census.end());
}

// Note [Body and head]: a step with one piece of the head runs body + head, one with two body + 2 heads; so each of
// them follows from two censuses, whatever operators the loss and the sums of gradients add.
void append_apart(Censuses& all, const std::function<void(int64_t pieces)>& run) {
  run(1);  // what happens only once (tables of positions) is not part of a step
  const Census one = census_of([&] { run(1); }), two = census_of([&] { run(2); });
  append(all, ForwardKind::kHead, combined(1, two, -1, one));
  append(all, ForwardKind::kBody, combined(2, one, -1, two));
}

}  // namespace

Censuses take_training_censuses(const CausalLm& model, const std::vector<CausalLm::Parameter>& trained,
                                const StageSpec& stage, int64_t rows) {
  Censuses all;
  for (const Phase phase : {Phase::kRollout, Phase::kEval}) {
    for (const auto& [kind, census] : take_censuses(model, phase, rows)) append(all, kind, census);
  }
  const std::vector<int64_t> prompt(kPromptTokens, 1), response(kResponseTokens, 1);
  const std::vector<Sequence> sequences(static_cast<std::size_t>(rows), {prompt, response});
  const SequenceBatch batch = make_batch(sequences, model.device());
  const int64_t tokens = batch.targets.size(0);
  const PartialLoss loss = probe_loss(stage, tokens, model.device());
  append_apart(all, [&](int64_t pieces) {
    for (const CausalLm::Parameter& parameter : trained) parameter.tensor->mutable_grad() = at::Tensor();
    const PhaseGuard phase(Phase::kActorForward);
    backward_tokens(model, batch, stage.sampling.temperature, loss, tokens / pieces);
  });
  for (const CausalLm::Parameter& parameter : trained) parameter.tensor->mutable_grad() = at::Tensor();
  const auto scored = [&](Phase phase) {
    Censuses censuses;
    append_apart(censuses, [&](int64_t pieces) {
      const PhaseGuard scope(phase);
      score_tokens(model, batch, stage.sampling.temperature, tokens / pieces);
    });
    return censuses;
  };
  for (const auto& [kind, census] : scored(Phase::kRef)) append(all, kind, census);
  if (stage.updates == 1) return all;
  for (auto& [kind, census] : scored(Phase::kActorForward)) {  // the old log-probabilities
    for (CensusEntry& entry : census) entry.scoring = true;
    append(all, kind, census);
  }
  return all;
}

}  // namespace faultline
