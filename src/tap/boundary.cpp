#include "tap/boundary.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ne.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/text.h"
#include "numeric/tensor_memory.h"

namespace faultline::tap {
namespace {

struct PassFunction : torch::autograd::Function<PassFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::shared_ptr<Plan>& plan, Row* row) {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor y = x.clone();
    plan->act(*row, y);
    const bool masked = row->rule->rule.gradient == numeric::GradientRule::kMasked;
    if (masked) context->save_for_backward({numeric::pack_bits(forced_by(row->rule->rule, x, y))});
    context->saved_data["masked"] = masked;
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    at::Tensor gradient = gradients[0];
    if (context->saved_data["masked"].toBool())
      gradient = numeric::mask_gradient(gradient, context->get_saved_variables()[0]);
    return {gradient, {}, {}};
  }
};

// The value passes, its gradient is faulted. The plan that made the node is the one that acts, if it still does.
struct GradientFunction : torch::autograd::Function<GradientFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t rule,
                            int64_t place) {
    context->saved_data["rule"] = rule;
    context->saved_data["place"] = place;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    at::Tensor gradient = gradients[0];
    const auto plan = active_plan();
    if (plan && plan->armed() && gradient.defined()) {
      const auto& rule = *plan->rules().at(static_cast<std::size_t>(context->saved_data["rule"].toInt()));
      gradient =
          faulted_gradient(*plan, rule, static_cast<site::PlaceId>(context->saved_data["place"].toInt()), gradient);
    }
    return {gradient, {}, {}};
  }
};

}  // namespace

// Inside a dead zone zeros were forced as well, whatever they had been.
at::Tensor forced_by(const numeric::Rule& rule, const at::Tensor& before, const at::Tensor& after) {
  return rule.what.kind == numeric::FaultKind::kDeadzone || rule.what.kind == numeric::FaultKind::kZero
             ? after.eq(0)
             : after.ne(before);
}

at::Tensor faulted_gradient(Plan& plan, const PlanRule& rule, site::PlaceId place, const at::Tensor& gradient) {
  Row& row = plan.row(rule, kBoundaryTarget, "boundary", {place, site::Phase::kActorBackward}, site::Surface::kGradient,
                      gradient);
  if (!row.unreached.empty()) {
    row.calls.fetch_add(1, std::memory_order_relaxed);
    return gradient;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor faulted = gradient.clone();
  plan.act(row, faulted);
  return faulted;
}

bool rule_means_boundary(const PlanRule& rule, const site::Place& place, site::Surface surface) {
  const site::Selector& where = *rule.rule.where;
  if (where.module_pattern.empty() || !rule_means_module(where, place)) return false;
  if (where.module_pattern == "layer_output") return surface == site::Surface::kOutput;
  if (where.module_pattern == "layer_input") return surface == site::Surface::kInput;
  return where.surface == surface || (where.surface == site::Surface::kGradient && surface == site::Surface::kOutput);
}

at::Tensor pass_through(const std::shared_ptr<Plan>& plan, Row& row, const at::Tensor& x) {
  return PassFunction::apply(x, plan, &row);
}

bool boundary_is_wanted(const Plan& plan, site::PlaceId id, site::Surface surface) {
  const site::Place& place = site::place_of(id);
  for (const auto& rule : plan.rules()) {
    const site::Selector& where = *rule->rule.where;
    if (!rule_means_layer(where, place)) continue;
    // A parameter's own surface is reached through the operators that read it, whichever way the rule names them.
    if (site::is_of_parameters(surface) ? where.surface == surface : rule_means_boundary(*rule, place, surface))
      return true;
  }
  return false;
}

namespace {

std::vector<std::string> roles_of(const std::vector<std::string>& paths) {
  std::set<std::string> roles = {"layer_output", "layer_input", "norm"};
  for (const std::string& path : paths) roles.insert(site::role_of_path(path));
  if (roles.contains("k_cache")) roles.insert("kv_cache");
  roles.erase("");
  return {roles.begin(), roles.end()};
}

// The ends of their paths behind the number of the layer: "mlp.down_proj".
std::vector<std::string> path_ends(const std::vector<std::string>& paths) {
  std::set<std::string> names;
  for (const std::string& path : paths) {
    std::size_t from = path.size();
    while (from != std::string::npos && from > 0) {
      from = path.rfind('.', from - 1);
      const std::string end = path.substr(from == std::string::npos ? 0 : from + 1);
      if (end.find_first_not_of("0123456789") == std::string::npos || std::isdigit(end[0]) != 0) break;
      names.insert(end);
    }
  }
  return {names.begin(), names.end()};
}

std::string no_module_sentence(const std::string& rule, const std::string& pattern,
                               const std::vector<std::string>& paths) {
  const std::vector<std::string> roles = roles_of(paths);
  if (pattern.ends_with("_cache") && std::find(roles.begin(), roles.end(), "kv_cache") == roles.end())
    return fmt::format(
        "rule '{}': no module matches '{}': what goes into a cache of keys and values is known of faultline's own "
        "model "
        "and of transformers'; elsewhere name the operator that writes it (in vLLM operator: "
        "'_C_cache_ops::reshape_and_cache*', surface: input)",
        rule, pattern);
  std::string hint = did_you_mean(pattern, roles);
  if (hint.empty()) hint = did_you_mean(pattern, path_ends(paths));
  if (hint.empty()) hint = fmt::format("; this model has {}", fmt::join(roles, ", "));
  return fmt::format("rule '{}': no module matches '{}'{}", rule, pattern, hint);
}

}  // namespace

void check_modules(const Plan& plan, const std::vector<std::string>& paths) {
  int64_t last_layer = -1;
  for (const std::string& path : paths) last_layer = std::max(last_layer, site::layer_of_path(path));
  for (const auto& rule : plan.rules()) {
    const site::Selector& where = *rule->rule.where;
    for (const site::LayerRange& range : where.layers) {
      if (range.first > last_layer)
        throw UsageError(fmt::format("rule '{}': layer {} does not exist; the model has layers 0 to {}",
                                     rule->rule.name, range.first, last_layer));
    }
    if (where.module_pattern.empty()) continue;
    bool meant = false, found = false;
    for (const std::string& path : paths) {
      const site::Place place{path, site::layer_of_path(path), site::role_of_path(path)};
      const bool named = rule_means_module(where, place);
      meant |= named, found |= named && rule_means_layer(where, place);
    }
    if (meant && !found)
      throw UsageError(fmt::format("rule '{}': module '{}' is in none of the layers that it names; leave out layer",
                                   rule->rule.name, where.module_pattern));
    if (!found) throw UsageError(no_module_sentence(rule->rule.name, where.module_pattern, paths));
  }
}

void check_biases(const Plan& plan, const std::vector<site::PlaceId>& with_bias) {
  for (const auto& rule : plan.rules()) {
    const site::Selector& where = *rule->rule.where;
    if (where.surface != site::Surface::kBias) continue;
    const bool any = std::any_of(with_bias.begin(), with_bias.end(), [&](site::PlaceId id) {
      const site::Place& place = site::place_of(id);
      return rule_means_layer(where, place) && !is_excepted(where, place) && !leaves_out(*rule, place);
    });
    if (any) continue;
    std::string names;
    for (std::size_t i = 0; i < with_bias.size() && i < 3; ++i)
      names += fmt::format("{}{}", i == 0 ? "" : ", ", site::place_of(with_bias[i]).path);
    throw UsageError(fmt::format("rule '{}': no product that it means adds a bias; {}", rule->rule.name,
                                 names.empty() ? "this model has none"
                                               : fmt::format("this model has {} ({}{})", with_bias.size(), names,
                                                             with_bias.size() > 3 ? ", …" : "")));
  }
}

namespace {

at::Tensor act_at_boundary(const at::Tensor& x, site::PlaceId id, site::Surface surface) {
  const auto plan = active_plan();
  if (!plan || !plan->armed()) return x;
  const site::Place& place = site::place_of(id);
  at::Tensor y = x;
  for (const auto& rule : plan->rules()) {
    if (!rule_means_boundary(*rule, place, surface)) continue;
    if (rule->rule.where->surface == site::Surface::kGradient) {
      if (y.requires_grad())
        y = GradientFunction::apply(y, static_cast<int64_t>(rule->index), static_cast<int64_t>(id));
      continue;
    }
    const site::Location location{id, site::locate().phase};
    Row& row = plan->row(*rule, kBoundaryTarget, "boundary", location, surface, y);
    if (row.unreached.empty()) {
      y = pass_through(plan, row, y);
    } else {
      row.calls.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return y;
}

bool plan_wants(site::PlaceId place, site::Surface surface) {
  const auto plan = active_plan();
  return plan && plan->armed() && boundary_is_wanted(*plan, place, surface);
}

void count_forwards_of_plan(site::Phase phase, site::ForwardKind kind, int64_t count) {
  const auto plan = active_plan();
  if (plan && plan->armed() && !plan->silenced()) plan->count_forwards(phase, kind, count);
}

bool plan_tells_decodings_apart() {
  const auto plan = active_plan();
  return plan && std::any_of(plan->rules().begin(), plan->rules().end(),
                             [](const auto& rule) { return rule->rule.when && rule->rule.when->decode_step; });
}

}  // namespace

const site::SiteListener kPlanListener{act_at_boundary, plan_wants, count_forwards_of_plan, plan_tells_decodings_apart};

}  // namespace faultline::tap
