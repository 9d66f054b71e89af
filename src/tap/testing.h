// What the tests of the taps share: plans from short forms, armed for a scope.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tap/operator_tap.h"

namespace faultline::tap {

inline numeric::Rule rule(const std::string& text) { return numeric::parse_rule(text, numeric::RuleUse::kInPlan); }

inline std::shared_ptr<Plan> make_plan(const std::vector<std::string>& texts, uint64_t seed = 1) {
  std::vector<numeric::Rule> rules;
  for (const std::string& text : texts) rules.push_back(rule(text));
  for (std::size_t i = 0; i < rules.size(); ++i) rules[i].name += std::to_string(i);
  return std::make_shared<Plan>(std::move(rules), recipe::read_plan_spec(recipe::recipe_of_rules({}, seed)).settings);
}

class Armed {
 public:
  explicit Armed(std::shared_ptr<Plan> plan) : plan_(std::move(plan)) { arm(plan_); }
  ~Armed() { disarm(); }
  Plan* operator->() const { return plan_.get(); }
  Plan& operator*() const { return *plan_; }

 private:
  std::shared_ptr<Plan> plan_;
};

inline const std::string kNoise = "relative_gaussian(strength=0.05) @ operator=matmul";

inline at::Tensor noise_like(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  return at::randn(sizes, generator, at::kFloat).to(type);
}

}  // namespace faultline::tap
