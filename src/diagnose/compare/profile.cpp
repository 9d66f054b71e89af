#include "diagnose/compare/profile.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/files/file.h"

namespace faultline::diagnose {
namespace {

// A rule that changes nothing in a forward like the recorded one fails its run.
constexpr int64_t kFewestUnequal = 64;

// Note [A profile keeps the error's energy]
// Where a result is near zero, its relative error can be anything: an error of a sum of products has the size of what
// was added, not of what came out. Drawn as they are, such relative errors would strike large results too, and one in a
// million would outweigh all others. So an element's error counts with the weight x^2 / (sum of its row's x^2): a fault
// y = x (1 + e) with e drawn from that distribution makes of every row the measured ratio of error to signal,
// E[sum (e x)^2] = sum x^2 E[e^2]. Tails are followed to one in 2^20, doubling, and what interpolation between the
// knots adds is taken out again: the profile's second moment is the measured one.
std::vector<double> knots() {
  std::vector<double> low, all;
  for (int power = 20; power >= 3; --power) low.push_back(std::ldexp(1.0, -power));
  all.push_back(0);
  all.insert(all.end(), low.begin(), low.end());
  for (const double middle : {0.25, 0.375, 0.5, 0.625, 0.75}) all.push_back(middle);
  for (auto p = low.rbegin(); p != low.rend(); ++p) all.push_back(1 - *p);
  all.push_back(1);
  return all;
}

// E[e^2] of straight lines between the knots.
double second_moment(const std::vector<std::pair<double, double>>& quantiles) {
  double sum = 0;
  for (std::size_t i = 1; i < quantiles.size(); ++i) {
    const auto [p0, a] = quantiles[i - 1];
    const auto [p1, b] = quantiles[i];
    sum += (p1 - p0) * (a * a + a * b + b * b) / 3;
  }
  return sum;
}

// What the fault reads.
Json profile_json(const ErrorProfile& profile, const std::string& dtype) {
  auto quantiles = Json::array();
  for (const auto& [p, error] : profile.quantiles) quantiles.push_back({p, error});
  return {{"version", 1},
          {"dtype", dtype},
          {"share_equal", std::min(profile.share_equal, 0.999999)},
          {"quantiles", quantiles}};
}

}  // namespace

bool ErrorGathering::add(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor a = first.to(at::kDouble).reshape({-1, first.dim() == 0 ? 1 : first.size(-1)}).cpu();
  const at::Tensor b = second.to(first.scalar_type()).to(at::kDouble).reshape(a.sizes()).cpu();
  const at::Tensor known = a.isfinite().logical_and_(b.isfinite()).logical_and_(a.ne(0));
  const at::Tensor square = at::where(known, a.square(), 0.0), energy = square.sum(1, true);
  const at::Tensor errors = ((b - a) / a).masked_select(known);
  if (errors.numel() == 0) return false;
  errors_.push_back(errors), weights_.push_back((square / energy).masked_select(known));
  rows_ += static_cast<double>(energy.gt(0).sum().item<int64_t>());
  elements_ += errors.numel();
  return true;
}

void ErrorGathering::add(const ErrorGathering& other) {
  errors_.insert(errors_.end(), other.errors_.begin(), other.errors_.end());
  weights_.insert(weights_.end(), other.weights_.begin(), other.weights_.end());
  rows_ += other.rows_, elements_ += other.elements_;
}

MeasuredErrors ErrorGathering::measured() const {
  MeasuredErrors measured;
  const at::Tensor all = at::cat(errors_), weight = at::cat(weights_), differs = all.ne(0);
  const at::Tensor unequal = all.masked_select(differs);
  measured.elements = all.numel(), measured.unequal = unequal.numel();
  measured.share_equal = 1 - static_cast<double>(unequal.numel()) / static_cast<double>(all.numel());
  measured.mean = all.mean().item<double>();
  measured.rms = all.square().mean().sqrt().item<double>();
  if (unequal.numel() == 0) return measured;
  measured.worst = unequal.abs().max().item<double>();
  const double energy = all.square().mul_(weight).sum().item<double>() / rows_;
  measured.noise_to_signal = std::sqrt(energy);
  const auto [sorted, order] = unequal.sort();
  const at::Tensor reached = weight.masked_select(differs).index_select(0, order).cumsum(0);
  const double share = reached[-1].item<double>() / rows_;  // of the energy of a row that is not equal
  if (share == 0) return measured;
  measured.profile.share_equal = std::max(0.0, 1 - share);
  for (const double p : knots()) {
    const double within = std::clamp(p, 0x1p-21, 1 - 0x1p-21);
    const int64_t at = at::searchsorted(reached, within * reached[-1].item<double>()).item<int64_t>();
    measured.profile.quantiles.emplace_back(p, sorted[std::min(at, sorted.numel() - 1)].item<double>());
  }
  const double scale = std::sqrt(energy / share / second_moment(measured.profile.quantiles));
  for (auto& [p, error] : measured.profile.quantiles) error *= scale;
  return measured;
}

int64_t write_profile_rules(const std::filesystem::path& folder, const std::string& title, const std::string& model,
                            const std::string& dtype, const std::vector<ProfileRule>& rules) {
  std::string recipe = fmt::format("# {}\n", title);
  if (!model.empty()) recipe += fmt::format("model: {}\n", model);
  recipe += "faults:\n";
  int64_t written = 0;
  for (const ProfileRule& rule : rules) {
    if (rule.errors.profile.quantiles.empty()) continue;
    if (rule.errors.unequal < kFewestUnequal) {
      recipe += fmt::format("  # {}: {} of {} elements differ, too few to re-create\n", rule.name, rule.errors.unequal,
                            rule.errors.elements);
      continue;
    }
    std::filesystem::create_directories(folder);
    const std::filesystem::path file = folder / (rule.name + ".json");
    write_file_atomically(file, profile_json(rule.errors.profile, dtype).dump(2) + "\n");
    recipe += fmt::format("  - name: {}{}\n    where: {}\n    what: {{kind: profile, file: '{}'}}\n", rule.name,
                          rule.note.empty() ? "" : "  # " + rule.note, rule.where, file.string());
    ++written;
  }
  if (written > 0) write_file_atomically(folder / "recipe.yaml", recipe);
  return written;
}

}  // namespace faultline::diagnose
