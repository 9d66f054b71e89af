#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <tuple>

#include "lab/training_state.h"
#include "site/scope.h"
#include "train/step.h"

namespace faultline::lab {
namespace {

constexpr int64_t kPromptTokens = 5, kResponseTokens = 8;

template <class Function>
tap::Census census_of(const Function& run) {
  tap::begin_census();
  try {
    run();
  } catch (...) {
    tap::end_census();
    throw;
  }
  return tap::end_census();
}

// a * first + b * second, entry by entry.
tap::Census combined(int64_t a, const tap::Census& first, int64_t b, const tap::Census& second) {
  std::map<std::tuple<std::string, site::PlaceId, site::Phase>, tap::CensusEntry> sums;
  for (const auto& [factor, census] : {std::pair(a, &first), std::pair(b, &second)}) {
    for (const tap::CensusEntry& entry : *census) {
      tap::CensusEntry& sum = sums[{entry.name, entry.place, entry.phase}];
      if (sum.name.empty()) sum = {entry.name, entry.place, entry.phase, 0, 0, 0, entry.shapes};
      sum.calls += factor * entry.calls, sum.writes += factor * entry.writes, sum.routed += factor * entry.routed;
      sum.flops += static_cast<double>(factor) * entry.flops, sum.bytes += static_cast<double>(factor) * entry.bytes;
    }
  }
  tap::Census census;
  for (auto& [key, entry] : sums) {
    if (entry.calls != 0) census.push_back(std::move(entry));
  }
  return census;
}

void append(tap::Censuses& all, site::ForwardKind kind, const tap::Census& census) {
  all[kind].insert(all[kind].end(), census.begin(), census.end());
}

// Note [Body and head]: a step with one piece of the head runs body + head, one with two body + 2 heads; so each of
// them follows from two censuses, whatever operators the loss and the sums of gradients add.
void append_apart(tap::Censuses& all, const std::function<void(int64_t pieces)>& run) {
  run(1);  // what happens only once (tables of positions) is not part of a step
  const tap::Census one = census_of([&] { run(1); }), two = census_of([&] { run(2); });
  append(all, site::ForwardKind::kHead, combined(1, two, -1, one));
  append(all, site::ForwardKind::kBody, combined(2, one, -1, two));
}

}  // namespace

tap::Censuses take_training_censuses(const model::CausalLm& model,
                                     const std::vector<model::CausalLm::Parameter>& trained,
                                     const train::StageSpec& stage, int64_t rows) {
  tap::Censuses all;
  for (const site::Phase phase : {site::Phase::kRollout, site::Phase::kEval}) {
    for (const auto& [kind, census] : take_censuses(model, phase, rows)) append(all, kind, census);
  }
  const std::vector<int64_t> prompt(kPromptTokens, 1), response(kResponseTokens, 1);
  const std::vector<train::Sequence> sequences(static_cast<std::size_t>(rows), {prompt, response});
  const train::SequenceBatch batch = train::make_batch(sequences, model.device());
  const int64_t tokens = batch.targets.size(0);
  const train::PartialLoss loss = train::probe_loss(stage, tokens, model.device());
  append_apart(all, [&](int64_t pieces) {
    for (const model::CausalLm::Parameter& parameter : trained) parameter.tensor->mutable_grad() = at::Tensor();
    const site::PhaseGuard phase(site::Phase::kActorForward);
    train::backward_tokens(model, batch, stage.sampling.temperature, loss, tokens / pieces);
  });
  for (const model::CausalLm::Parameter& parameter : trained) parameter.tensor->mutable_grad() = at::Tensor();
  const auto scored = [&](site::Phase phase) {
    tap::Censuses censuses;
    append_apart(censuses, [&](int64_t pieces) {
      const site::PhaseGuard scope(phase);
      train::score_tokens(model, batch, stage.sampling.temperature, tokens / pieces);
    });
    return censuses;
  };
  for (const auto& [kind, census] : scored(site::Phase::kRef)) append(all, kind, census);
  if (stage.updates == 1) return all;
  for (auto& [kind, census] : scored(site::Phase::kActorForward)) {  // the old log-probabilities
    for (tap::CensusEntry& entry : census) entry.scoring = true;
    append(all, kind, census);
  }
  return all;
}

}  // namespace faultline::lab
