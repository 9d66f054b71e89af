#include "lab/injection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lab/countable.h"
#include "site/forward.h"
#include "site/phase_guard.h"
#include "tap/boundary.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"
#include "tap/prediction.h"

namespace faultline {
namespace {

constexpr int64_t kProbeTokens = 16;

at::Tensor probe_tokens(const CausalLm& model, int64_t rows, int64_t first = 0) {
  const at::Tensor tokens =
      (at::arange(rows * kProbeTokens, at::TensorOptions(at::kLong)) + first) % model.config().vocabulary;
  return tokens.reshape({rows, kProbeTokens}).to(model.device());
}

Census census_of(const std::function<void()>& run) {
  begin_census();
  try {
    run();
  } catch (...) {
    end_census();
    throw;
  }
  return end_census();
}

}  // namespace

Censuses take_censuses(const CausalLm& model, Phase phase, int64_t rows) {
  const at::NoGradGuard no_gradients;
  const PhaseGuard guard(phase);
  const at::Tensor tokens = probe_tokens(model, rows);
  model.ensure_positions(kProbeTokens + 1);  // a table that is made once is no part of a forward
  KvCache cache(model.config(), rows, kProbeTokens + 1, model.options());
  const at::TensorOptions int64 = tokens.options();
  const at::Tensor lengths = at::full({rows}, kProbeTokens, int64), all_rows = at::arange(rows, int64);
  Censuses censuses;
  censuses[ForwardKind::kWhole] = census_of([&] { model.logits(model.hidden_states(tokens)); });
  censuses[ForwardKind::kPrefill] = census_of([&] { model.prefill(tokens, lengths, all_rows, cache); });
  censuses[ForwardKind::kDecode] = census_of([&] { model.decode(tokens.select(1, 0).contiguous(), lengths, cache); });
  return censuses;
}

Injection::Injection(PlanSpec spec, CausalLm& model, Phase phase, int64_t rows)
    : Injection(std::move(spec), model, phase, [&] { return take_censuses(model, phase, rows); }) {}

Injection::Injection(PlanSpec spec, CausalLm& model, Phase phase, const std::function<Censuses()>& take)
    : rules_(std::move(spec.rules)),
      settings_(spec.settings.on_layers(model.config().layers)),
      model_(model),
      phase_(phase),
      plan_(make_plan()) {
  check_modules(*plan_, model.module_paths());
  {
    const ToldBoundaries told(*plan_);
    censuses_ = take();
  }
  const bool scores =
      std::any_of(censuses_.begin(), censuses_.end(), [](const auto& census) { return tells_scoring(census.second); });
  refuse_operators_chosen_by_rows(*plan_, model.device(), scores);
  check_reached(*plan_, censuses_);
  refuse_rules_without_a_step(*plan_);
}

Injection::~Injection() { disarm(); }

std::shared_ptr<Plan> Injection::make_plan() const { return std::make_shared<Plan>(rules_, settings_); }

at::Tensor Injection::probe(int64_t first_token) const {
  const at::NoGradGuard no_gradients;
  const PhaseGuard guard(phase_);
  return model_.logits(model_.hidden_states(probe_tokens(model_, 1, first_token)));
}

void Injection::self_check() {
  const at::Tensor clean = probe();
  if (!probe().equal(clean))
    throw EvidenceError(ComplaintCode::kRepeats,
                        "A/A: two forwards without faults differ; a comparison would measure chance");
  std::vector<Rule> asleep = rules_, awake = rules_;
  bool visible = false, repeats = false;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    asleep[i].lifetime = kAsleep;
    awake[i].lifetime = {};  // whether it acts when it should is the ledger's question; here: would it show?
    awake[i].schedule.reset();
    visible |= !rules_[i].expect_invisible;
    repeats |= rules_[i].what.kind == FaultKind::kStale;
  }
  const auto under = [&](std::shared_ptr<Plan> plan) {
    faultline::arm(std::move(plan));
    at::Tensor result;
    try {
      if (repeats) probe(1);  // what a stale site gives is of the call before
      result = probe();
    } catch (...) {
      faultline::disarm();
      throw;
    }
    faultline::disarm();
    return result;
  };
  if (!under(std::make_shared<Plan>(std::move(asleep), settings_)).equal(clean))
    throw EvidenceError(ComplaintCode::kRepeats,
                        "A/A: a plan that is armed but never active changes the model's output");
  const bool in_phase = std::any_of(plan_->rules().begin(), plan_->rules().end(), [&](const auto& rule) {
    return rule->phases.test(static_cast<std::size_t>(phase_));
  });
  if (visible && in_phase && under(std::make_shared<Plan>(std::move(awake), settings_)).equal(clean))
    throw EvidenceError(ComplaintCode::kCanary,
                        fmt::format("canary: the armed plan does not change one bit of the model's output in phase {}",
                                    phase_name(phase_)));
}

void Injection::arm() {
  if (armed_) return;
  faultline::arm(plan_);
  armed_ = true;
}

void Injection::disarm() {
  if (!armed_) return;
  faultline::disarm();
  armed_ = false;
}

nlohmann::ordered_json Injection::prediction() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [kind, census] : censuses_) {
    auto rules = nlohmann::ordered_json::array();
    for (const Prediction& prediction : predict(*plan_, census)) {
      int64_t calls = 0;
      for (const int64_t n : prediction.calls) calls += n;
      rules.push_back({{"rule", prediction.rule->rule.name}, {"sites", prediction.sites}, {"calls", calls}});
    }
    json[std::string(forward_kind_name(kind))] = rules;
  }
  return json;
}

Injection::Proof Injection::finish() {
  disarm();
  // An examination runs parts of the model, some of them again and again: no number of forwards says how often.
  const Verdict verdict = judge(*plan_, phase_ == Phase::kDiagnose ? Censuses{} : censuses_);
  Proof proof{verdict.complaints, log_lines(*plan_, verdict), to_json(*plan_, verdict, censuses_)};
  return proof;
}

}  // namespace faultline
