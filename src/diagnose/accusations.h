// From broken relations to candidates. Evidence is gathered by place; within a layer the most particular place is the
// accused (an operator before the module around it, a module before the layer's output), because a broken operator
// breaks what contains it, and not the other way round. Layers are accused independently: two may be broken.
#pragma once

#include <map>

#include "diagnose/kind.h"
#include "diagnose/observation.h"

namespace faultline {

class Accusations {
 public:
  // Judges with the plan paused. True: the relation was kept.
  bool add(const Observation& observation, int64_t pass = 0);

  int64_t relations() const { return relations_; }
  int64_t elements() const { return elements_; }
  bool any() const { return !accused_.empty(); }
  std::vector<Candidate> candidates() const;  // ranked

 private:
  struct Accused {
    Candidate candidate;
    int level = 0;
    std::map<std::string, Kind> kinds;  // their weights added up
  };
  std::map<PlaceId, Accused> accused_;
  int64_t relations_ = 0, elements_ = 0;
};

}  // namespace faultline
