// The recipe's `aqn:` in a sampler that is not ours (vLLM), as operators: which of the model's norms are meant, as in
// our own trainer, and their noise, one weight at a time. The client keeps the clean weight and puts the noisy one in
// its place at every step and after every weight update; deviates are those of our own rollout for the same seed, step
// and parameter name.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <map>
#include <mutex>

#include "aqn/aqn_section.h"
#include "aqn/norm_noise.h"
#include "plugin/recipe_sections.h"
#include "site/torch_support.h"

namespace faultline::plugin {
namespace {

struct Aqn {
  std::optional<aqn::AqnSpec> spec;
  uint64_t seed = 0;
};

Aqn read_aqn_of(const std::string& recipe, at::ArrayRef<std::string> overrides) {
  const Node node = read_clients_recipe(recipe, overrides);
  Aqn aqn;
  aqn.seed = static_cast<uint64_t>(node.at("seed").as_integer());
  if (const Node* section = node.find("aqn")) aqn.spec = aqn::read_aqn(*section);
  return aqn;
}

// Read once: a model has dozens of norms, and they must have their noise from one text.
const Aqn& aqn_of(const std::string& recipe) {
  static std::mutex mutex;
  static std::map<std::string, Aqn> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(recipe);
  if (found != known.end()) return found->second;
  return known.emplace(recipe, read_aqn_of(recipe, {})).first->second;
}

bool op_has_aqn(const std::string& recipe, at::ArrayRef<std::string> overrides) {
  return site::translated([&] { return read_aqn_of(recipe, overrides).spec.has_value(); });
}

const aqn::AqnSpec& norm_noise_of(const std::string& recipe) {
  const Aqn& aqn = aqn_of(recipe);
  if (!aqn.spec) throw UsageError("the recipe has no section aqn");
  if (aqn.spec->sites != aqn::AqnSites::kNormWeight)
    throw UsageError("aqn.sites: inside another engine the noise goes onto norm weights; leave sites out");
  return *aqn.spec;
}

// Whether a run of so many steps meets more than one strength.
bool op_aqn_changes(const std::string& recipe, int64_t total_steps) {
  return site::translated([&] { return changes_over(norm_noise_of(recipe).schedule, total_steps); });
}

// -> those of the model's modules whose weights carry the noise
std::vector<std::string> op_aqn_norms(const std::string& recipe, at::ArrayRef<std::string> modules,
                                      int64_t total_steps) {
  return site::translated([&] {
    const aqn::AqnSpec& spec = norm_noise_of(recipe);
    const std::vector<std::string> paths(modules.begin(), modules.end());
    std::vector<std::string> norms = aqn::select_norms(paths, spec);
    std::vector<int64_t> layers;
    for (const std::string& norm : norms) layers.push_back(site::layer_of_path(norm));
    aqn::strongest_step(spec.schedule, layers, aqn::count_layers(paths),
                        total_steps);  // refuses a schedule without noise
    return norms;
  });
}

// Refuses a weight whose dtype would round the schedule's weakest noise away.
void op_check_norm_noise(const at::Tensor& clean, const std::string& recipe, const std::string& path,
                         int64_t layer_count, int64_t total_steps) {
  site::translated([&] {
    aqn::check_weakest(clean, path, norm_noise_of(recipe), site::layer_of_path(path), layer_count, total_steps);
  });
}

// -> the weight with its noise, sigma, and the squared error as asked for and as it is after rounding to the weight's
// dtype
std::tuple<at::Tensor, double, double, double> op_norm_noise(const at::Tensor& clean, const std::string& recipe,
                                                             const std::string& path, int64_t layer_count, int64_t step,
                                                             int64_t total_steps) {
  return site::translated([&]() -> std::tuple<at::Tensor, double, double, double> {
    const aqn::AqnSpec& spec = norm_noise_of(recipe);
    const int64_t layer = site::layer_of_path(path);
    const double sigma = strength_at(spec.schedule, step, total_steps);
    const double strength = sigma * layer_multiplier(spec.schedule, layer, layer_count, step, total_steps);
    if (strength == 0) return {clean.clone(), sigma, 0.0, 0.0};
    aqn::check_representable(clean, path, strength, spec.relative());
    const at::Tensor exact = clean.detach().to(at::kCPU, at::kFloat).reshape(-1);
    const at::Tensor scale = spec.relative() ? exact.abs() * strength : at::full_like(exact, strength);
    const at::Tensor noise = scale * aqn::norm_deviates(aqn_of(recipe).seed, step, path + ".weight", exact.numel());
    at::Tensor noisy = (exact + noise).view(clean.sizes()).to(clean.options());
    const at::Tensor error = noisy.to(at::kCPU, at::kDouble).reshape(-1) - exact.to(at::kDouble);
    return {std::move(noisy), sigma, scale.to(at::kDouble).square().sum().item<double>(),
            error.square().sum().item<double>()};
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("has_aqn(str recipe, str[] overrides) -> bool", op_has_aqn);
  m.def("aqn_changes(str recipe, int total_steps) -> bool", op_aqn_changes);
  m.def("aqn_norms(str recipe, str[] modules, int total_steps) -> str[]", op_aqn_norms);
  m.def("check_norm_noise(Tensor clean, str recipe, str path, int layer_count, int total_steps) -> ()",
        op_check_norm_noise);
  m.def(
      "norm_noise(Tensor clean, str recipe, str path, int layer_count, int step, int total_steps) -> (Tensor, float, "
      "float, float)",
      op_norm_noise);
}

}  // namespace faultline::plugin
