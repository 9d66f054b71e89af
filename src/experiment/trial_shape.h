// Whether a stored trial has the shape that run_trial gives it. A store may come from another machine, by --merge or by
// hand; what reads it later takes fields for granted, so it is looked at once, at the door.
#pragma once

#include <string>

#include "record/campaign_store.h"

namespace faultline {

std::string misshapen(const Trial& trial);  // a sentence, or ""

}  // namespace faultline
