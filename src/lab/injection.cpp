#include "lab/injection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "model/product.h"
#include "numeric/apply.h"
#include "numeric/resolution.h"
#include "site/forward.h"
#include "site/scope.h"
#include "tap/boundary.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"
#include "tap/prediction.h"

namespace faultline::lab {
namespace {

constexpr int64_t kProbeTokens = 16;

at::Tensor probe_tokens(const model::CausalLm& model, int64_t rows, int64_t first = 0) {
  const at::Tensor tokens =
      (at::arange(rows * kProbeTokens, at::TensorOptions(at::kLong)) + first) % model.config().vocabulary;
  return tokens.reshape({rows, kProbeTokens}).to(model.device());
}

tap::Census census_of(const std::function<void()>& run) {
  tap::begin_census();
  try {
    run();
  } catch (...) {
    tap::end_census();
    throw;
  }
  return tap::end_census();
}

}  // namespace

tap::Censuses take_censuses(const model::CausalLm& model, site::Phase phase, int64_t rows) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard guard(phase);
  const at::Tensor tokens = probe_tokens(model, rows);
  model.ensure_positions(kProbeTokens + 1);  // a table that is made once is no part of a forward
  model::KvCache cache(model.config(), rows, kProbeTokens + 1, model.options());
  const at::TensorOptions int64 = tokens.options();
  const at::Tensor lengths = at::full({rows}, kProbeTokens, int64), all_rows = at::arange(rows, int64);
  tap::Censuses censuses;
  censuses[site::ForwardKind::kWhole] = census_of([&] { model.logits(model.hidden_states(tokens)); });
  censuses[site::ForwardKind::kPrefill] = census_of([&] { model.prefill(tokens, lengths, all_rows, cache); });
  censuses[site::ForwardKind::kDecode] =
      census_of([&] { model.decode(tokens.select(1, 0).contiguous(), lengths, cache); });
  return censuses;
}

Injection::Injection(recipe::PlanSpec spec, model::CausalLm& model, site::Phase phase, int64_t rows)
    : Injection(std::move(spec), model, phase, [&] { return take_censuses(model, phase, rows); }) {}

Injection::Injection(recipe::PlanSpec spec, model::CausalLm& model, site::Phase phase,
                     const std::function<tap::Censuses()>& take)
    : rules_(std::move(spec.rules)),
      settings_(spec.settings.on_layers(model.config().layers)),
      model_(model),
      phase_(phase),
      plan_(make_plan()) {
  refuse_invisible(rules_, model.options().dtype().toScalarType());
  tap::check_modules(*plan_, model.module_paths());
  std::vector<site::PlaceId> with_bias;
  for (const model::CausalLm::Parameter& parameter : model.parameters())
    if (parameter.name.ends_with(".bias")) with_bias.push_back(parameter.place);
  tap::check_biases(*plan_, with_bias);
  {
    const tap::ToldBoundaries told(*plan_);
    censuses_ = take();
  }
  const bool scores = std::any_of(censuses_.begin(), censuses_.end(),
                                  [](const auto& census) { return tap::tells_scoring(census.second); });
  refuse_operators_chosen_by_rows(*plan_, model.device(), scores);
  tap::check_reached(*plan_, censuses_);
  refuse_rules_without_a_step(*plan_);
  refuse_rules_without_a_forward(*plan_, censuses_);
}

Injection::~Injection() { disarm(); }

std::shared_ptr<tap::Plan> Injection::make_plan() const { return std::make_shared<tap::Plan>(rules_, settings_); }

at::Tensor Injection::probe(int64_t first_token) const {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard guard(phase_);
  const at::Tensor tokens = probe_tokens(model_, 1, first_token);
  const at::Tensor logits = model_.logits(model_.hidden_states(tokens));
  if (std::none_of(rules_.begin(), rules_.end(), [](const auto& rule) { return tap::names_cache(*rule.where); }))
    return logits;
  const at::Tensor length = at::full({1}, kProbeTokens, tokens.options());  // a fault in a cache shows when it is read
  model::KvCache cache(model_.config(), 1, kProbeTokens + 1, model_.options());
  model_.prefill(tokens, length, at::zeros_like(length), cache);
  return at::cat({logits, model_.decode(tokens.select(1, 0).contiguous(), length, cache)});
}

void Injection::self_check() {
  const at::Tensor clean = probe();
  if (!probe().equal(clean))
    throw EvidenceError(ComplaintCode::kRepeats,
                        "A/A: two forwards without faults differ; a comparison would measure chance");
  std::vector<numeric::Rule> asleep = rules_, awake = rules_;
  bool visible = false, repeats = false;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    asleep[i].lifetime = numeric::kAsleep;
    awake[i].when.reset();
    awake[i].lifetime = {};  // whether it acts when it should is the ledger's question; here: would it show?
    awake[i].schedule.reset();
    visible |= !rules_[i].expect_invisible;
    repeats |= rules_[i].what.kind == numeric::FaultKind::kStale;
  }
  const auto under = [&](std::shared_ptr<tap::Plan> plan) {
    faultline::tap::arm(std::move(plan));
    at::Tensor result;
    try {
      if (repeats) probe(1);  // what a stale site gives is of the call before
      result = probe();
    } catch (...) {
      faultline::tap::disarm();
      throw;
    }
    faultline::tap::disarm();
    return result;
  };
  if (!under(std::make_shared<tap::Plan>(std::move(asleep), settings_)).equal(clean))
    throw EvidenceError(ComplaintCode::kRepeats,
                        "A/A: a plan that is armed but never active changes the model's output");
  const bool in_phase = std::any_of(plan_->rules().begin(), plan_->rules().end(), [&](const auto& rule) {
    return rule->phases.test(static_cast<std::size_t>(phase_));
  });
  if (visible && in_phase && under(std::make_shared<tap::Plan>(std::move(awake), settings_)).equal(clean))
    throw EvidenceError(ComplaintCode::kCanary,
                        fmt::format("canary: the armed plan does not change one bit of the model's output in phase {}",
                                    site::phase_name(phase_)));
}

void Injection::arm() {
  if (armed_) return;
  faultline::tap::arm(plan_);
  armed_ = true;
}

void Injection::disarm() {
  if (!armed_) return;
  faultline::tap::disarm();
  armed_ = false;
}

Json Injection::prediction() const {
  Json json = Json::object();
  for (const auto& [kind, census] : censuses_) {
    auto rules = Json::array();
    for (const tap::Prediction& prediction : tap::predict(*plan_, census)) {
      int64_t calls = 0;
      for (const int64_t n : prediction.calls) calls += n;
      rules.push_back({{"rule", prediction.rule->rule.name}, {"sites", prediction.sites}, {"calls", calls}});
    }
    json[std::string(site::forward_kind_name(kind))] = rules;
  }
  return json;
}

Injection::Proof Injection::finish() {
  disarm();
  // An examination runs parts of the model, some of them again and again: no number of forwards says how often.
  const tap::Verdict verdict = tap::judge(*plan_, phase_ == site::Phase::kDiagnose ? tap::Censuses{} : censuses_);
  Proof proof{verdict.complaints, tap::log_lines(*plan_, verdict), tap::to_json(*plan_, verdict, censuses_)};
  return proof;
}

void refuse_operators_chosen_by_rows(const tap::Plan& plan, const c10::Device& device, bool scores) {
  if (!model::product_depends_on_rows(device)) return;
  constexpr std::array<const char*, 3> kProducts = {"faultline::few_rows_linear", "aten::mm", "aten::addmm"};
  tap::PhaseSet with_gradients;  // there torch's product is used for any number of rows
  for (const site::Phase phase : {site::Phase::kActorForward, site::Phase::kActorBackward, site::Phase::kRecompute})
    with_gradients.set(static_cast<std::size_t>(phase), phase != site::Phase::kActorForward || !scores);
  for (const auto& rule : plan.rules()) {
    const std::string& pattern = rule->rule.where->operator_pattern;
    if (pattern.empty() || (rule->phases & ~with_gradients).none()) continue;
    std::set<std::string> meant;
    for (const std::string& name : tap::operators_of(*rule)) meant.insert(std::string(tap::base_name(name)));
    const auto count =
        std::count_if(kProducts.begin(), kProducts.end(), [&](auto name) { return meant.contains(name); });
    if (count == 0 || count == std::ssize(kProducts)) continue;
    throw UsageError(fmt::format(
        "rule '{}': operator '{}' means only some of the operators that compute a product on {} ({}); which of "
        "them runs depends on the number of rows, so its calls could not be counted on; name the family: "
        "operator: matmul",
        rule->rule.name, pattern, device.str(), fmt::join(kProducts, ", ")));
  }
}

void refuse_invisible(const std::vector<numeric::Rule>& rules, at::ScalarType dtype) {
  const auto type = numeric::dtype_of(at::empty({0}, dtype));
  for (const numeric::Rule& rule : rules)
    if (rule.where && (rule.where->operator_pattern.empty() || rule.where->operator_pattern == "matmul"))
      numeric::check_visible(rule, type);
}

void refuse_rules_without_a_forward(const tap::Plan& plan, const tap::Censuses& censuses) {
  const auto ran = [](const auto& census) { return std::string(site::forward_kind_name(census.first)); };
  for (const auto& rule : plan.rules()) {
    const auto& when = rule->rule.when;
    if (!when || std::any_of(censuses.begin(), censuses.end(),
                             [&](const auto& census) { return site::means_kind(*when, census.first); }))
      continue;
    std::vector<std::string> kinds;
    std::transform(censuses.begin(), censuses.end(), std::back_inserter(kinds), ran);
    throw UsageError(fmt::format("rule '{}': its when means no forward of this run ({}): it would never act",
                                 rule->rule.name, fmt::join(kinds, ", ")));
  }
}

void refuse_rules_without_a_step(const tap::Plan& plan) {
  const int64_t steps = plan.settings().total_steps;
  const std::string run = fmt::format("the run has {} step{}", steps, steps == 1 ? "" : "s");
  for (const auto& rule : plan.rules()) {
    const numeric::LifetimeSpec& lifetime = rule->rule.lifetime;
    if (lifetime.kind == numeric::Lifetime::kWindow && lifetime.from >= steps)
      throw UsageError(fmt::format("rule '{}': its window opens at step {}, counted from 0, and {}: it would never act",
                                   rule->rule.name, lifetime.from, run));
    if (!rule->rule.schedule) continue;
    int64_t silent = 0;
    while (silent < steps && strength_at(*rule->rule.schedule, silent, steps) == 0) ++silent;
    if (silent == steps)
      throw UsageError(fmt::format("rule '{}': its schedule is 0 all the time: {}", rule->rule.name, run));
  }
}

}  // namespace faultline::lab
