// The library's face for C++ programs, over the modules below: nothing is computed here.
#include <ATen/ops/tensor.h>

#include "base/complaint.h"
#include "base/error.h"
#include "base/json.h"
#include "diagnose/examination.h"
#include "faultline/faultline.h"
#include "lab/loaded_model.h"
#include "numeric/apply.h"
#include "numeric/resolution.h"
#include "numeric/versions.h"
#include "plugin/recipe_sections.h"
#include "record/run_record.h"
#include "report/record.h"
#include "site/scope.h"
#include "tap/operator_tap.h"
#include "tap/report.h"

namespace faultline::api {

struct Recipe::Data {
  Node node;
};
struct Armed::Data {
  std::shared_ptr<tap::Plan> plan;
  Json recipe;
};

Recipe::Recipe(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
Recipe Recipe::load(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  plugin::register_recipe_sections();
  return Recipe(std::make_shared<const Data>(Data{recipe::load_recipe(file, overrides)}));
}
Recipe Recipe::parse(std::string_view text, const std::vector<std::string>& overrides) {
  plugin::register_recipe_sections();
  return Recipe(std::make_shared<const Data>(Data{recipe::parse_recipe(text, overrides)}));
}

Armed::Armed(const Recipe& recipe, int64_t total_steps, int64_t layers) {
  recipe::PlanSpec spec = recipe::read_plan_spec(recipe.data_->node, total_steps, layers);
  data_ = std::make_unique<Data>(
      Data{std::make_shared<tap::Plan>(std::move(spec.rules), spec.settings), to_json(recipe.data_->node)});
  tap::arm(data_->plan);
}
Armed::~Armed() { tap::disarm(); }
void Armed::begin_step(int64_t step) { data_->plan->begin_step(step); }

Proof Armed::judge() {
  tap::Plan& plan = *data_->plan;
  const faultline::tap::Verdict verdict = faultline::tap::judge(plan, {});
  Proof proof;
  for (const faultline::Complaint& one : verdict.complaints)
    proof.complaints.push_back({std::string(complaint_name(one.code)), one.rule, one.place, one.sentence});
  proof.log = tap::log_lines(plan, verdict);
  proof.json = tap::to_json(plan, verdict, {}).dump(2);
  return proof;
}

std::filesystem::path Armed::leave_record(const std::filesystem::path& root, const std::string& name,
                                          const std::string& numbers) {
  tap::Plan& plan = *data_->plan;
  const Json report = tap::to_json(plan, faultline::tap::judge(plan, {}), {});
  const record::Asked asked{name, data_->recipe, plan.settings().seed, data_->recipe.at("faults")};
  return record::write_plan_run(root, asked, {.versions = numeric::versions()}, report,
                                parse_json_text(numbers, "numbers"));
}

std::string Proof::sentences() const {
  std::string all;
  for (const Complaint& one : complaints) all += (all.empty() ? "" : "; ") + one.sentence;
  return all;
}

Module::Module(std::string_view path) { site::push_scope(site::place_id(path)); }
Module::~Module() { site::pop_scope(); }

namespace {
constexpr int kAuto = -1;
}

PhaseScope::PhaseScope(std::string_view phase)
    : before_(site::get_phase() ? static_cast<int>(*site::get_phase()) : kAuto) {
  const std::optional<site::Phase> found = site::phase_by_name(phase);
  if (!found) throw UsageError("unknown phase '" + std::string(phase) + "'");
  site::set_phase(found);
}
PhaseScope::~PhaseScope() {
  site::set_phase(before_ == kAuto ? std::nullopt : std::optional(static_cast<site::Phase>(before_)));
}

at::Tensor apply(const at::Tensor& x, const std::string& fault, uint64_t seed) {
  const numeric::Rule rule = numeric::parse_rule(fault, numeric::RuleUse::kOnTensor);
  numeric::check_tensor(x, "the tensor");
  numeric::check_visible(rule, numeric::dtype_of(x));
  const at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  numeric::apply_(y, rule, numeric::Identity{seed, "", 0}, numeric::CallPoint{});
  return y;
}

uint64_t digest(const at::Tensor& tensor) {
  return static_cast<uint64_t>(faultline::numeric::digest(tensor.contiguous()).item<int64_t>());
}

Verdict diagnose(const DiagnoseOptions& options) {
  const lab::LoadedModel loaded = lab::load_model(options.model, {});
  const std::vector<int64_t> tokens = loaded.tokenizer.encode(options.prompt);
  if (tokens.empty()) throw UsageError("the prompt has no token in it");
  diagnose::Examiner examiner(*loaded.model, at::kCPU, options.seed, /*keep=*/false);
  const diagnose::Diagnosis diagnosis =
      examiner.run({options.method, at::tensor(tokens, at::kLong).unsqueeze(0), options.seed, 1});
  return {diagnosis.fault_found(), diagnose::to_json(diagnosis).dump(2)};
}

std::string report_page(const std::filesystem::path& record) { return report::page({report::load_record(record)}); }

}  // namespace faultline::api
