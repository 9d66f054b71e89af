// A diagnosis from a model's name on: prepared once, then as many diagnoses by as many methods as wanted, under
// whatever plan is armed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "diagnose/diagnosis.h"
#include "diagnose/known_answers.h"
#include "diagnose/recomputation.h"

namespace faultline::tap {
class Plan;
}

namespace faultline::diagnose {

struct Examination {
  std::string method = "self";  // classic, self, shadow
  at::Tensor tokens;            // (1, T) int64, on any device
  uint64_t seed = 0;
  int64_t passes = 1;
  bool whole_forwards = false;  // classic: 11 a layer, as published
};

class Examiner {
 public:
  // reference: where answers are computed. keep: everything that further diagnoses of the same model can use again.
  Examiner(const model::CausalLm& model, const at::Device& reference, uint64_t seed, bool keep);

  Diagnosis run(const Examination& examination);
  const model::CausalLm& model() const { return model_; }

 private:
  const std::map<site::PlaceId, KnownAnswers>& answers();

  const model::CausalLm& model_;
  at::Device device_;
  uint64_t seed_;
  std::map<site::PlaceId, KnownAnswers> answers_;
  Recomputation reference_;
};

// What a plan's faults have done so far, from its ledger: calls and elements of all sites, errors of the worst one.
struct Planted {
  struct Rule {
    std::string name, surface, place;  // place: a module path, or how many places of which operator
    int64_t calls = 0, changed = 0;
  };
  std::vector<Rule> rules;
  int64_t calls = 0, changed = 0;
  double largest_error = 0, mean_error = 0;
};
Planted planted_by(tap::Plan& plan);
Json to_json(const Planted& planted);

}  // namespace faultline::diagnose
