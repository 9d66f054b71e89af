#include "plugin/session.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <filesystem>
#include <mutex>

#include "base/complaint.h"
#include "base/json.h"
#include "numeric/versions.h"
#include "plugin/recipe_sections.h"
#include "record/run_record.h"
#include "site/boundary.h"
#include "site/entered.h"
#include "site/forward.h"
#include "site/torch_support.h"
#include "tap/boundary.h"
#include "tap/counts.h"
#include "tap/operator_tap.h"
#include "tap/operators.h"
#include "tap/prediction.h"
#include "tap/report.h"
#include "tap/substitution.h"

namespace faultline::plugin {
namespace {

struct Session {
  std::mutex mutex;
  std::shared_ptr<tap::Plan> plan;
  Json recipe;           // of the plan
  tap::Censuses census;  // by kind of forward; empty: none was taken
};
Session& session() {
  static auto* the_session = new Session;
  return *the_session;
}

std::shared_ptr<tap::Plan> plan_or_throw() {
  const auto plan = session().plan;
  if (!plan) throw UsageError("no plan is loaded in this process; load a recipe first");
  return plan;
}

void op_plan_load(const std::string& recipe, at::ArrayRef<std::string> overrides, int64_t total_steps,
                  int64_t layer_count) {
  site::translated([&] {
    const Node node = read_clients_recipe(recipe, overrides);
    recipe::PlanSpec spec = recipe::read_plan_spec(node, total_steps, layer_count);
    auto plan = std::make_shared<tap::Plan>(std::move(spec.rules), spec.settings, node.find("aqn") != nullptr);
    const std::lock_guard<std::mutex> lock(session().mutex);
    if (tap::active_plan() != nullptr)
      throw UsageError("a plan is armed in this process; disarm it before another recipe is loaded");
    session().plan = std::move(plan);
    session().recipe = to_json(node);
    session().census.clear();  // another model's, perhaps
  });
}

void op_check_recipe(const std::string& recipe, at::ArrayRef<std::string> overrides) {
  site::translated([&] { (void)read_clients_recipe(recipe, overrides); });
}

void op_plan_arm() {
  site::translated([] { tap::arm(plan_or_throw()); });
}
void op_plan_disarm() {
  site::translated([] { tap::disarm(); });
}
bool op_plan_is_armed() { return tap::active_plan() != nullptr; }
bool op_plan_was_lost() { return tap::lost_plan_by_fork(); }

void op_begin_step(int64_t step) {
  site::translated([&] { plan_or_throw()->begin_step(step); });
}
// More forwards, as replays of a captured graph are.
void op_count_forwards(const std::string& phase, int64_t count, const std::string& kind) {
  site::translated([&] {
    const auto found = site::phase_by_name(phase);
    const auto found_kind = site::forward_kind_by_name(kind);
    if (!found) throw UsageError("unknown phase '" + phase + "'");
    if (!found_kind) throw UsageError("unknown kind of forward '" + kind + "'; kinds are whole, prefill and decode");
    plan_or_throw()->count_forwards(*found, *found_kind, count);
    if (*found == site::Phase::kActorForward && at::GradMode::is_enabled())
      plan_or_throw()->count_forwards(site::Phase::kActorBackward, *found_kind, count);
  });
}
void op_set_phase(const std::string& phase) {
  site::translated([&] {
    const auto found = site::phase_by_name(phase);
    if (!found && phase != "auto")
      throw UsageError("unknown phase '" + phase +
                       "'; phases are auto, rollout, actor_forward, ref, eval, critic and diagnose");
    site::set_phase(found);
  });
}
std::string op_get_phase() {
  const auto phase = site::get_phase();
  return phase ? std::string(site::phase_name(*phase)) : "auto";
}

int64_t op_place(const std::string& path) { return site::place_id(path); }
int64_t op_layer(const std::string& path) { return site::layer_of_path(path); }
std::string op_role(const std::string& path) { return site::role_of_path(path); }
void op_register_parameter(const at::Tensor& parameter, const std::string& path) {
  site::register_parameter(parameter, site::place_id(path));
}
void op_forget_parameters() {
  site::forget_parameters();
  site::forget_modules();
}
void op_know_module(int64_t place, int64_t products, bool is_compiled, bool is_trained, int64_t biases) {
  site::know_module(static_cast<site::PlaceId>(place), {products, is_compiled, is_trained, biases});
}

void op_silence(const std::string& reason) {
  site::translated([&] { plan_or_throw()->silence(reason); });
}
void op_end_silence() {
  site::translated([] { plan_or_throw()->end_silence(); });
}
bool op_is_silenced() {
  const auto plan = session().plan;
  return plan && plan->silenced();
}
bool op_rehearse(const std::string& kind) {
  return site::translated([&] { return plan_or_throw()->rehearse(site::forward_kind_by_name(kind)); });
}
void op_set_loud(bool loud) {
  site::translated([&] { plan_or_throw()->set_loud(loud); });
}
void op_forget_evidence() {
  site::translated([] { plan_or_throw()->forget_evidence(); });
}
void op_weights_changed() {
  if (const auto plan = session().plan) plan->weights().new_epoch(*plan);
}

site::Surface surface_of(const std::string& name) {
  if (name == "input") return site::Surface::kInput;
  if (name == "output") return site::Surface::kOutput;
  throw UsageError("a boundary's surface is input or output; got '" + name + "'");
}
at::Tensor op_boundary(const at::Tensor& x, int64_t place, const std::string& surface) {
  return site::translated([&] {
    tap::count_boundary(static_cast<site::PlaceId>(place), surface_of(surface));
    return site::boundary(x, static_cast<site::PlaceId>(place), surface_of(surface));
  });
}
bool op_boundary_is_wanted(int64_t place, const std::string& surface) {
  return site::translated([&] {
    return tap::boundary_is_wanted(*plan_or_throw(), static_cast<site::PlaceId>(place), surface_of(surface));
  });
}
// Whether rules there mask gradients, and whether they fault them: what a compiled boundary has to prepare for.
std::tuple<bool, bool> op_boundary_in_backward(int64_t place, const std::string& surface) {
  return site::translated([&]() -> std::tuple<bool, bool> {
    bool masked = false, gradient = false;
    for (const auto& rule : plan_or_throw()->rules()) {
      if (!tap::rule_means_boundary(*rule, site::place_of(static_cast<site::PlaceId>(place)), surface_of(surface)))
        continue;
      const bool on_gradient = rule->rule.where->surface == site::Surface::kGradient;
      gradient |= on_gradient;
      masked |= !on_gradient && rule->rule.gradient == numeric::GradientRule::kMasked;
    }
    return {masked, gradient};
  });
}
// Rules that name modules must match one of the model's: otherwise their error says which names exist.
void op_check_modules(at::ArrayRef<std::string> paths) {
  site::translated([&] {
    const std::vector<std::string> all(paths.begin(), paths.end());
    tap::check_modules(*plan_or_throw(), all);
    std::vector<site::PlaceId> with_bias;
    for (const auto& [place, module] : site::known_modules())
      if (module.biases > 0) with_bias.push_back(place);
    tap::check_biases(*plan_or_throw(), with_bias);
  });
}

void op_note_routing(int64_t experts, const at::Tensor& chosen, int64_t count) {
  site::note_routing(static_cast<site::PlaceId>(experts), chosen, count);
}
bool op_routing_is_wanted() { return tap::routing_is_wanted(); }

void op_census_begin() { tap::begin_census(); }
std::string op_census_end(bool keep) {
  const tap::Censuses censuses = tap::end_census_by_kind();
  auto json = Json::array();
  bool routed = false;
  for (const auto& [kind, census] : censuses) {
    for (auto& entry : tap::to_json(census)) {
      entry["kind"] = std::string(site::forward_kind_name(kind));
      json.push_back(entry);
    }
    routed |= std::any_of(census.begin(), census.end(), [](const tap::CensusEntry& entry) { return entry.routed > 0; });
  }
  if (keep) {
    session().census = censuses;
    if (const auto plan = session().plan) plan->set_counts_routing(routed);
  }
  return json.dump();
}

Json calls_by_phase(const int64_t (&calls)[site::kPhases]) {
  auto json = Json::object();
  for (int p = 0; p < site::kPhases; ++p) {
    if (calls[p] > 0) json[std::string(site::phase_name(static_cast<site::Phase>(p)))] = calls[p];
  }
  return json;
}

std::string op_plan_predict() {
  return site::translated([] {
    const auto plan = plan_or_throw();
    const tap::Censuses& censuses = session().census;
    if (censuses.empty())
      throw UsageError("a prediction needs a census: run the model once under census_begin … census_end");
    tap::check_reached(*plan, censuses);
    auto rules = Json::array();
    auto covered = Json::object();
    for (const auto& rule : plan->rules()) {
      int64_t sites = 0;
      auto calls = Json::object(), routed = Json::object();
      for (const auto& [kind, census] : censuses) {
        const tap::Prediction prediction = tap::predict(*plan, census).at(rule->index);
        const std::string name(site::forward_kind_name(kind));
        sites = std::max(sites, prediction.sites);  // forwards of all kinds pass the same modules
        if (auto of_kind = calls_by_phase(prediction.calls); !of_kind.empty()) calls[name] = of_kind;
        if (auto of_kind = calls_by_phase(prediction.routed_calls); !of_kind.empty()) routed[name] = of_kind;
      }
      rules.push_back({{"rule", rule->rule.name}, {"sites", sites}, {"calls_per_forward", calls}});
      if (!routed.empty()) rules.back()["calls_per_routed_call"] = routed;
    }
    for (const auto& [kind, census] : censuses)
      covered[std::string(site::forward_kind_name(kind))] = tap::coverage(*plan, census);
    return Json({{"rules", rules}, {"coverage", covered}}).dump();
  });
}

// Evidence as JSON, the log lines among it. `counts`: hold call counts against the census, too.
std::string op_plan_report(bool counts) {
  return site::translated([&] {
    const auto plan = plan_or_throw();
    const tap::Verdict verdict = tap::judge(*plan, counts ? session().census : tap::Censuses{});
    Json json = tap::to_json(*plan, verdict, session().census);
    json["log"] = tap::log_lines(*plan, verdict);
    return json.dump();
  });
}

// The recipe of the plan, resolved.
std::string op_plan_recipe() {
  return site::translated([&] { return plan_or_throw(), to_json_text(session().recipe); });
}

// recipe: of op_plan_recipe; report: of op_plan_report, with what the client knows besides; numbers: measured under the
// plan.
std::string op_plan_record(const std::string& root, const std::string& name, const std::string& recipe,
                           const std::string& report, const std::string& numbers, at::ArrayRef<std::string> command) {
  return site::translated([&] {
    const Json resolved = parse_json_text(recipe, "recipe");
    const record::Asked asked{name, resolved, resolved.at("seed").get<uint64_t>(), resolved.at("faults")};
    const record::Maker maker{.versions = numeric::versions(), .command = command.vec()};
    return record::write_plan_run(root, asked, maker, parse_json_text(report, "report"),
                                  parse_json_text(numbers, "numbers"))
        .string();
  });
}

std::string op_wrapped() {
  auto json = Json::array();
  for (const tap::WrappedOperator& op : tap::wrapped_operators())
    json.push_back({{"operator", op.name}, {"key", op.key}});
  return json.dump();
}
std::string op_families() {
  auto json = Json::array();
  for (const tap::Family& family : tap::families())
    json.push_back({{"family", std::string(family.name)},
                    {"summary", std::string(family.summary)},
                    {"operators", std::vector<std::string>(family.operators.begin(), family.operators.end())}});
  return json.dump();
}
std::string op_complaint_codes() {
  auto json = Json::array();
  for (const ComplaintKind& kind : complaint_kinds())
    json.push_back({{"code", std::string(kind.name)}, {"meaning", std::string(kind.meaning)}});
  return json.dump();
}
void op_unwrap() {
  site::translated([] { tap::unwrap_all(); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("plan_load(str recipe, str[] overrides, int total_steps, int layer_count) -> ()", op_plan_load);
  m.def("check_recipe(str recipe, str[] overrides) -> ()", op_check_recipe);
  m.def("plan_arm() -> ()", op_plan_arm);
  m.def("plan_disarm() -> ()", op_plan_disarm);
  m.def("plan_is_armed() -> bool", op_plan_is_armed);
  m.def("plan_was_lost() -> bool", op_plan_was_lost);
  m.def("plan_predict() -> str", op_plan_predict);
  m.def("plan_report(bool counts) -> str", op_plan_report);
  m.def("plan_recipe() -> str", op_plan_recipe);
  m.def("plan_record(str root, str name, str recipe, str report, str numbers, str[] command) -> str", op_plan_record);
  m.def("begin_step(int step) -> ()", op_begin_step);
  m.def("count_forwards(str phase, int count, str kind=\"whole\") -> ()", op_count_forwards);
  m.def("set_phase(str phase) -> ()", op_set_phase);
  m.def("get_phase() -> str", op_get_phase);
  m.def("place(str path) -> int", op_place);
  m.def("layer(str path) -> int", op_layer);
  m.def("role(str path) -> str", op_role);
  m.def("register_parameter(Tensor parameter, str path) -> ()", op_register_parameter);
  m.def("forget_parameters() -> ()", op_forget_parameters);
  m.def("weights_changed() -> ()", op_weights_changed);
  m.def("know_module(int place, int products, bool is_compiled, bool is_trained, int biases=0) -> ()", op_know_module);
  m.def("silence(str reason) -> ()", op_silence);
  m.def("end_silence() -> ()", op_end_silence);
  m.def("is_silenced() -> bool", op_is_silenced);
  m.def("rehearse(str kind) -> bool", op_rehearse);  // "": it has ended
  m.def("forget_evidence() -> ()", op_forget_evidence);
  m.def("set_loud(bool loud) -> ()", op_set_loud);
  m.def("boundary(Tensor x, int place, str surface) -> Tensor", op_boundary);
  m.def("boundary_is_wanted(int place, str surface) -> bool", op_boundary_is_wanted);
  m.def("boundary_in_backward(int place, str surface) -> (bool, bool)", op_boundary_in_backward);
  m.def("check_modules(str[] paths) -> ()", op_check_modules);
  m.def("note_routing(int experts, Tensor chosen, int count) -> ()", op_note_routing);
  m.def("routing_is_wanted() -> bool", op_routing_is_wanted);
  m.def("census_begin() -> ()", op_census_begin);
  m.def("census_end(bool keep) -> str", op_census_end);
  m.def("wrapped_operators() -> str", op_wrapped);
  m.def("operator_families() -> str", op_families);
  m.def("complaint_codes() -> str", op_complaint_codes);
  m.def("unwrap() -> ()", op_unwrap);
}

}  // namespace faultline::plugin

void faultline_push_scope(uint32_t place) { faultline::site::push_scope(place); }
void faultline_pop_scope() { faultline::site::pop_scope(); }
void faultline_abandon_scope() { faultline::site::abandon_scope(); }
void faultline_begin_forward(uint32_t place, int32_t kind, int32_t phase) {
  FL_ASSERT(kind >= 0 && kind < faultline::site::kForwardKinds && phase < faultline::site::kPhases);
  faultline::site::begin_forward(place, static_cast<faultline::site::ForwardKind>(kind),
                                 phase < 0 ? std::nullopt : std::optional(static_cast<faultline::site::Phase>(phase)));
}
int32_t faultline_kind_number(const char* name) {
  const auto kind = faultline::site::forward_kind_by_name(name);
  return kind ? static_cast<int32_t>(*kind) : -1;
}
int32_t faultline_phase_number(const char* name) {
  const auto phase = faultline::site::phase_by_name(name);
  return phase ? static_cast<int32_t>(*phase) : -1;
}
