// From "these bytes are wrong" to "this went wrong": one cause for each independent fault, and nothing else blamed for
// what follows from it. A wrong shard on one rank makes every rank's gathered buffer wrong, a corrupted reference
// buffer stays wrong for the layers after it; both are one event.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "race/digest_table.h"

namespace faultline::race {

enum class Cause {
  kNone,
  kLocalMemory,      // a buffer changed before it was sent
  kCollective,       // what arrived is not what was sent
  kReferenceBuffer,  // the input of a computation changed
  kCompute,          // right input, wrong output
  kH2dCopy,          // the copy from the host
  kAmbiguous,        // wrong, but not explained by one cause
};
const char* cause_name(Cause cause);

// A set of keys, as bits 1 << key.
using KeyMask = unsigned;
constexpr KeyMask mask_of(Key key) { return 1u << static_cast<unsigned>(key); }

// The cause of one cell by itself, for each of the 16 sets of wrong keys. `consumes`: compute reads what was gathered.
Cause cause_of(KeyMask wrong, bool consumes);

struct Event {
  Cause cause = Cause::kNone;
  int rank = 0;
  int64_t layer = -1;             // -1: the copy from the host
  std::string operation = {};     // all_gather, reduce_scatter, all_reduce, all_to_all, compute, backward, h2d
  KeyMask keys = 0;               // what was wrong in the cell
  std::vector<int> sources = {};  // kCollective: whose data arrived wrong
  int64_t consequences = 0;       // wrong cells that this one explains
  bool by_digest = false, by_pattern = false;
};

std::vector<Event> attribute(const Config& config, const std::vector<RankRecord>& ranks,
                             const std::vector<Deviation>& deviations);

}  // namespace faultline::race
