// The errors of one computation against another, gathered element by element, and what of them the fault `profile` can
// make again. There is one maker of profiles: machines whose calls were made again (compare.h, `python -m
// faultline.devices`) and traces beside each other (divergence.h) hand their numbers to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace faultline::diagnose {

// What the fault `profile` draws from: Note [A profile keeps the error's energy].
struct ErrorProfile {
  double share_equal = 0;
  std::vector<std::pair<double, double>> quantiles;  // (p, relative error) of the unequal ones; none: all are equal
};

struct MeasuredErrors {
  int64_t elements = 0, unequal = 0;
  double share_equal = 0, mean = 0, rms = 0, worst = 0;  // relative error, element by element: mean is the bias
  double noise_to_signal = 0;                            // root of the error's energy over the signal's, mean of rows
  ErrorProfile profile;
};

class ErrorGathering {
 public:
  // second's error against first, in first's type; rows are those of the last dimension. Elements that are not finite
  // or have nothing to be relative to are left out. false: there was none.
  bool add(const at::Tensor& first, const at::Tensor& second);
  void add(const ErrorGathering& other);
  int64_t elements() const { return elements_; }
  MeasuredErrors measured() const;  // of at least one addition

 private:
  double rows_ = 0;
  int64_t elements_ = 0;
  std::vector<at::Tensor> errors_, weights_;  // fp64, flat; weights of a row add up to one
};

struct ProfileRule {
  std::string name, where, note;  // where: of the recipe, "{operator: 'aten::mm'}"; note: a comment behind the name
  MeasuredErrors errors;
};

// FOLDER/NAME.json for each rule whose errors can be made again, and FOLDER/recipe.yaml, which injects them. -> how
// many; none: nothing was written.
int64_t write_profile_rules(const std::filesystem::path& folder, const std::string& title, const std::string& model,
                            const std::string& dtype, const std::vector<ProfileRule>& rules);

}  // namespace faultline::diagnose
