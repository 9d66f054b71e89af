// What workers did, added up into one record: counts by check, group, core and time, failures, canaries, rates and the
// bound they allow.
#pragma once

#include "screen/screen.h"

namespace faultline::screen {

// One worker's part of a screen.
struct Part {
  std::string name;         // "alone", "together"; of a GPU "all"
  std::optional<int> core;  // of a CPU
  const WorkList* list = nullptr;
  WorkerResult result;
};

// "checks", "groups", "bound", "failures", "canaries", "cores", "not_tested", "rates", "memory", "broken_off"
void add_parts(Json& record, const std::vector<Part>& parts);

// A part that another process screened, as its own record.
void add_record(Json& record, const Json& part, const std::string& name);

}  // namespace faultline::screen
