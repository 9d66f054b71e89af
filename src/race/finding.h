// What a rank saw, kept for people: the mismatches with place, bits and damage, the events they were attributed to, the
// notes about time. Bounded, with a count of what was left out, and identical in JSON and in the log's lines, whose
// heads other tools search for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "race/attribution.h"
#include "race/patterns.h"

namespace faultline::race {

inline constexpr size_t kMaxDetails = 256;  // of each list, per rank

struct Mismatch {  // of a pattern check
  int rank = 0;
  int64_t iteration = 0;
  int64_t layer = -1;
  std::string operation;  // all_gather, reduce_scatter, …; shard and gradient for buffers before they are sent
  bool backward = false;
  int source = -1;  // whose data it should be
  uint64_t count = 0, first = 0, last = 0, changed_bits = 0;
  std::vector<uint64_t> histogram;      // by bit
  uint32_t observed = 0, expected = 0;  // at the first sampled element
  Diagnosis diagnosis;
};

struct TimedEvent {
  int64_t iteration = 0;
  Event event;
};
struct TimedDeviation {
  int64_t iteration = 0;
  Deviation deviation;
};
struct SlowNote {
  int rank = 0;
  int64_t iteration = 0;
  int64_t layer = 0;
  double seconds = 0, usual = 0;  // between two collectives, on this rank's own account
};

template <class Item>
class Bounded {
 public:
  void add(Item item) {
    ++count_;
    if (items_.size() < kMaxDetails) items_.push_back(std::move(item));
  }
  const std::vector<Item>& items() const { return items_; }
  uint64_t count() const { return count_; }
  uint64_t omitted() const { return count_ - items_.size(); }
  void add_omitted(uint64_t count) { count_ += count; }

 private:
  std::vector<Item> items_;
  uint64_t count_ = 0;
};

struct Findings {
  Bounded<Mismatch> mismatches;
  Bounded<TimedDeviation> deviations;
  Bounded<TimedEvent> events;
  Bounded<SlowNote> slow;

  bool corrupted() const { return mismatches.count() + deviations.count() + events.count() > 0; }
};

// "ALL_GATHER CORRUPTION: rank=2 iter=5 layer=7 …"
std::string log_line(const Mismatch& mismatch);
// "LAYER_CHECKSUM_MISMATCH (comm_output): rank=2 iter=5 reference=… layer_7=… …"
std::string log_line(const TimedDeviation& deviation);
std::string log_line(const TimedEvent& event);
std::string log_line(const SlowNote& note);
// Where ranks are on several machines, `hosts` by rank: the line of a rank ends with " host=n3", that of an event with
// " source_hosts=[n1]" besides.
std::vector<std::string> log_lines(const Findings& findings, const std::vector<std::string>& hosts = {});

Json to_json(const Findings& findings);

}  // namespace faultline::race
