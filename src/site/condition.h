// `when:` — at which calls of its sites a rule acts: by the rows and columns of the tensor, by the kind of forward, by
// the number of the decoding. What does not hold changes nothing and is counted as a call, as outside of a lifetime.
// All of it is known on the host when a kernel is launched, so captured graphs and compiled code follow.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/config/schema.h"
#include "site/forward.h"

namespace faultline::site {

struct Bounds {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();

  bool hold(int64_t value) const { return value >= least && value <= most; }
};

struct Condition {
  std::optional<Bounds> rows, columns;
  std::vector<ForwardKind> forwards;  // none: any
  std::optional<Bounds> decode_step;
};

Schema condition_schema();
Condition read_condition(const Node& when);  // validated

bool means_kind(const Condition& when, ForwardKind kind);
// Of a call on this thread now, on a tensor of this many rows (all dimensions but the last) and columns.
bool holds(const Condition& when, int64_t rows, int64_t columns);

}  // namespace faultline::site
