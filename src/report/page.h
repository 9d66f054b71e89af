// One self-contained HTML page from records: no script, no network, no file beside it. A content security policy in its
// head forbids all of them, so that even a mistake in escaping could not run anything.
#pragma once

#include <string>
#include <vector>

#include "report/loaded_record.h"

namespace faultline::report {

std::string page(const std::vector<LoadedRecord>& records);

// A line for each record, for a terminal.
struct Outline {
  std::string name, kind, headline;
  std::vector<std::string> missing;
};
std::vector<Outline> outline(const std::vector<LoadedRecord>& records);

extern const char* const kStyleSheet;

}  // namespace faultline::report
