// `schedule:` — the schedules of base/schedule.h as a section of a rule (and, later, of aqn).
#pragma once

#include "base/schedule.h"
#include "base/schema.h"

namespace faultline {

Schema schedule_schema();
ScheduleSpec read_schedule(const Node& schedule);  // validated

}  // namespace faultline
