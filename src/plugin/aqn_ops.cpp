// The recipe's `aqn:` in a sampler that is not ours (vLLM): one norm weight at a time, as operators. The client keeps
// the clean weight and puts the noisy one in its place after every weight update; deviates are those of our own rollout
// for the same seed, step and parameter name.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "aqn/aqn_schema.h"
#include "aqn/norm_noise.h"
#include "recipe/recipe.h"
#include "site/translated.h"

namespace faultline {
namespace {

struct Aqn {
  std::optional<AqnSpec> spec;
  uint64_t seed = 0;
};

Aqn read_recipe(const std::string& recipe, at::ArrayRef<std::string> overrides) {
  const std::vector<std::string> changes(overrides.begin(), overrides.end());
  const bool is_text = recipe.find_first_of("\n{") != std::string::npos;
  const Node node = is_text ? parse_recipe(recipe, changes) : load_recipe(recipe, changes);
  Aqn aqn;
  aqn.seed = static_cast<uint64_t>(node.at("seed").as_integer());
  if (const Node* section = node.find("aqn")) aqn.spec = read_aqn(*section);
  return aqn;
}

// Read once: a model has dozens of norms, and they must have their noise from one text.
const Aqn& aqn_of(const std::string& recipe) {
  static std::mutex mutex;
  static std::map<std::string, Aqn> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(recipe);
  if (found != known.end()) return found->second;
  return known.emplace(recipe, read_recipe(recipe, {})).first->second;
}

bool op_has_aqn(const std::string& recipe, at::ArrayRef<std::string> overrides) {
  return translated([&] { return read_recipe(recipe, overrides).spec.has_value(); });
}

bool means_layer(const AqnSpec& spec, int64_t layer) {
  return spec.layers.empty() || std::any_of(spec.layers.begin(), spec.layers.end(), [&](const LayerRange& range) {
           return range.first <= layer && layer <= range.last;
         });
}

// -> the weight with its noise, sigma, and the squared error as asked for and as it is after rounding to the weight's
// dtype
std::tuple<at::Tensor, double, double, double> op_norm_noise(const at::Tensor& clean, const std::string& recipe,
                                                             const std::string& path, int64_t layer_count, int64_t step,
                                                             int64_t total_steps) {
  return translated([&]() -> std::tuple<at::Tensor, double, double, double> {
    const Aqn& aqn = aqn_of(recipe);
    if (!aqn.spec) throw UsageError("the recipe has no section aqn");
    if (aqn.spec->sites != AqnSites::kNormWeight)
      throw UsageError("aqn.sites: inside another engine the noise goes onto norm weights; leave sites out");
    const int64_t layer = layer_of_path(path);
    const double sigma = strength_at(aqn.spec->schedule, step, total_steps);
    if (sigma == 0 || !means_layer(*aqn.spec, layer)) return {clean.clone(), sigma, 0.0, 0.0};
    check_representable(clean, path, sigma, aqn.spec->relative());
    const double strength = sigma * layer_multiplier(aqn.spec->schedule, layer, layer_count, step, total_steps);
    const at::Tensor exact = clean.detach().to(at::kCPU, at::kFloat).reshape(-1);
    const at::Tensor scale = aqn.spec->relative() ? exact.abs() * strength : at::full_like(exact, strength);
    const at::Tensor noise = scale * norm_deviates(aqn.seed, step, path + ".weight", exact.numel());
    at::Tensor noisy = (exact + noise).view(clean.sizes()).to(clean.options());
    const at::Tensor error = noisy.to(at::kCPU, at::kDouble).reshape(-1) - exact.to(at::kDouble);
    return {std::move(noisy), sigma, scale.to(at::kDouble).square().sum().item<double>(),
            error.square().sum().item<double>()};
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("has_aqn(str recipe, str[] overrides) -> bool", op_has_aqn);
  m.def(
      "norm_noise(Tensor clean, str recipe, str path, int layer_count, int step, int total_steps) -> (Tensor, float, "
      "float, float)",
      op_norm_noise);
}

}  // namespace faultline
