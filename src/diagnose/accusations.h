// From broken relations to candidates. Evidence is gathered by place; within a layer the most particular place is the
// accused (an operator before the module around it, a module before the layer's output), because a broken operator
// breaks what contains it, and not the other way round. Layers are accused independently: two may be broken.
#pragma once

#include <map>

#include "diagnose/kind.h"
#include "diagnose/observation.h"

namespace faultline::diagnose {

class Accusations {
 public:
  // Observations are judged some at a time, with the plan paused: those left when something is asked, by then.
  void add(Observation observation, int64_t pass = 0);
  void note_kept(const Observation& observation, const Glance& seen);  // judged elsewhere
  void note_untested(site::PlaceId place, int64_t elements);           // that could not even be asked about
  void settle();                                                       // now
  void settle_what_can_be();  // of a machine that failed: what it still answers

  int64_t relations() const { return relations_; }
  int64_t elements() const { return elements_; }
  std::vector<Untested> untested() const;  // by layer, where there is any
  bool any();
  std::vector<Candidate> candidates() const;  // ranked; of what is settled
  // Layers that were wrong at one call and right at another, where no operator was caught at it.
  std::vector<int64_t> layers_to_search();

 private:
  void accuse(const Observation& observation, int64_t pass);
  void count(const Observation& observation, const Glance& seen);

  struct Named {  // a kind that pictures of the place look like
    Kind heaviest;
    double weight = 0;  // of all of them
    bool intermittent = false;
    Zone zone;
  };
  static const Zone& zone_of(const Named& named);
  struct Accused {
    Candidate candidate;
    int level = -1;  // of the most particular operation that was caught; kinds are of that level
    bool comes_and_goes = false;
    std::map<std::string, Named> kinds;
  };
  std::map<site::PlaceId, Accused> accused_;
  int64_t relations_ = 0, elements_ = 0;  // judged
  std::map<int64_t, Untested> by_layer_;
  std::vector<Observation> waiting_;
  std::vector<int64_t> waiting_passes_;
  int64_t waiting_elements_ = 0;
};

}  // namespace faultline::diagnose
