// Where each rank stands when a run has stopped, and who of them is to blame. The judgement reads how far each rank
// came and whether it waits or works, never who gave up first: that is a matter of the machine's load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace faultline::race {

struct Standing {
  enum class State {
    kWorking,  // between two collectives
    kCalling,  // starts one, in a transport whose call need not wait for the others (foreign_group.h)
    kWaiting,  // in one, or at the end of an iteration for its device; also of a rank that left because nobody came
    kFailed,   // ended by itself: an error of its own, a signal
    kSilent,   // gives no more sign of life, and has not said that it leaves
    kDone      // came to the end
  };
  State state = State::kWorking;
  uint64_t reached = 0;  // collectives that its loop has come to
  uint64_t called = 0;   // of these, those it took part in
  std::string place;     // "iteration 5, layer 7, all_gather"
  int64_t iteration = 0;

  uint64_t left_out() const { return reached - called; }
  std::string text() const;  // "iteration 5, layer 7, all_gather, 61 collectives"
};
const char* state_name(Standing::State state);

// Note [Who is to blame]: the first of these that some rank answers to, and nobody else:
//   1. it has left out more collectives than another: from there on the ranks talk past each other, and any of them may
//      be the first to notice;
//   2. it failed;
//   3. it is silent;
//   4. it works while the others wait for it; of several such ranks those that came least far;
//   5. it is still in the call that starts a collective which another has started and waits in: its transport holds it
//      up. Where the call itself waits for all, nobody has got past it, and this says nothing.
// A rank that waits, in step with the others, is never among them. Nobody: all wait for each other. The only rank of a
// run is its own.
std::vector<int> to_blame(const std::vector<Standing>& standings);

// What the rank did to be blamed, "left out 1 of the 62 collectives that it came to; it stands in …".
std::string offence(const Standing& standing);

Json to_json(const Standing& standing);
Standing standing_from_json(const Json& json);

}  // namespace faultline::race
