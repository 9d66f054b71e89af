// Parts of a step: what several processes may share (Note [Shards] in train/replicas.h). The calls of a part are
// numbered from part * 65536 on, so its faults draw the same numbers in whichever order and process the parts are
// computed. Like the phase, the part is the process's: one plan acts in it.
#pragma once

#include "tap/plan.h"

namespace faultline {

// What follows is this part of the plan's step. 0: the step as a whole, which is what it is otherwise.
void begin_part(Plan& plan, int64_t part);

}  // namespace faultline
