// `schedule:` — the schedules of base/schedule.h as a section of a rule and as part of aqn's.
#pragma once

#include <functional>

#include "base/schedule.h"
#include "base/schema.h"

namespace faultline {

Schema schedule_schema();
// The same with the kind under another key and with more fields beside the schedule's own.
Schema schedule_schema(const std::string& tag, const std::function<Schema(const Schema&)>& extended);
ScheduleSpec read_schedule(const Node& schedule);  // validated

}  // namespace faultline
