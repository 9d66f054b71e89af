// Which kernels were faulted: launches held against the fault kernels that ran with them. Pure functions over a list,
// so that graphs, generated code and adversarial orders are tested without a GPU.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "tap/launch_families.h"

namespace faultline::tap {

struct Launch {
  uint32_t name = 0;  // in LaunchList::names
  uint32_t device = 0, context = 0, stream = 0;
  uint32_t correlation = 0;  // of the API call: one launch, or all kernels of a graph's replay
  uint32_t graph = 0;
  uint64_t node = 0;            // of the graph; 0: not launched by a graph
  uint64_t scope = 0;           // the call of a wrapped operator that launched it (LaunchScope); 0: none
  uint64_t start = 0, end = 0;  // ns
};
// Launch::scope -> the row that was pushed.
constexpr uint64_t row_of_scope(uint64_t scope) { return scope & 0xFFFFFFFFu; }
// The row of a call that the rules leave out on purpose (a router's, an adapter's): its kernels are none that miss a
// fault.
constexpr uint64_t kLeftOutRow = 0xFFFFFFFFu;

struct LaunchList {
  std::vector<std::string> names;  // demangled, each once
  std::vector<Launch> launches;
};

// Note [Faulted launches]
// Inside a scope, which is the outermost call of a wrapped operator, everything is faulted if a fault kernel was
// launched there. Without scopes (graphs, generated code) the order on a stream decides: a kernel is faulted if the
// next one on its stream is a fault; in between only parts of the same kernel (sums of a split product) and of the
// fault (statistics) may stand. A fault inside a scope belongs to that scope's operator and to nobody before it. So an
// untapped product that runs before a tapped one is never taken for it.
std::vector<bool> faulted_launches(const LaunchList& list);

struct LaunchCount {
  int64_t launches = 0, faulted = 0;
};
struct FamilyLaunches {
  LaunchCount all;
  int64_t left_out = 0;                        // launches of calls that the rules leave out, in none of the counts
  int64_t parts = 0;                           // launches that worked for others of the family, in none of the counts
  std::map<std::string, LaunchCount> kernels;  // by short name
};
struct LaunchTable {
  int64_t launches = 0;   // every launch
  int64_t in_graphs = 0;  // of these, kernels that a graph's replay launched
  std::map<LaunchFamily, FamilyLaunches> families;
};
LaunchTable tabulate(const LaunchList& list);

// {"launches", "in_graphs", "families": {"product": {"launches", "faulted", "left_out", "parts", "kernels": {name:
// {…}}}, …}}
Json to_json(const LaunchTable& table);
// Each launch with what was made of it, in the order of streams and times: for whoever doubts the table.
Json list_to_json(const LaunchList& list);

}  // namespace faultline::tap
