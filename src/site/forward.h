// Whole forwards, by kind: which one an operator belongs to, going forward and in backward, and how many this thread
// has begun. Counts of calls are predicted by forward and kind (tap/counts.h), so both are kept whether anybody listens
// or not: a census is taken before a plan is armed.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "site/boundary.h"

namespace faultline::site {

std::string_view forward_kind_name(ForwardKind kind);  // whole, prefill, decode, body, head
std::optional<ForwardKind> forward_kind_by_name(std::string_view name);

// push_scope of the whole model. phase: of this forward where the process has none; nothing: as the gradient mode says.
void push_forward(PlaceId root, ForwardKind kind, std::optional<Phase> phase);
// As begin_forward, with the phase of this forward.
void begin_forward(PlaceId root, ForwardKind kind, std::optional<Phase> phase);

// The kind of forward that the running operator is part of: in backward its forward's, between forwards the last one's
// (the loss, the choice of a token).
ForwardKind forward_kind();

// The number of the decoding that runs or ran last on this thread: 0 is the first after a forward of another kind.
int64_t decode_step();

// Forwards begun, by phase and kind. In the column of actor_backward: those of actor_forward that began with gradients
// on, so that a backward is due.
using ForwardTally = std::array<std::array<int64_t, kForwardKinds>, kPhases>;
const ForwardTally& forwards_begun();  // by this thread

}  // namespace faultline::site
