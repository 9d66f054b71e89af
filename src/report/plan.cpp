// The story of a plan in somebody's own program: whether its faults happened, and what was measured under them.
#include <fmt/format.h>

#include "report/field.h"
#include "report/story.h"

namespace faultline::report {

Story plan_story(const LoadedRecord& record) {
  Story story;
  const Json& complaints = at(record.results(), "complaints");
  const bool proven = complaints.is_array() && complaints.empty();
  story.tone = proven ? Tone::kGood : Tone::kBad;
  story.headline = proven ? "Every fault of the plan happened, as often and as strongly as asked."
                          : "The evidence is missing: no number of this run may be reported.";
  for (const Json& complaint : items(complaints)) story.words.push_back(string(complaint, "sentence"));
  std::vector<std::vector<Cell>> rows;
  for (const auto& [name, value] : leaves(at(record.results(), "numbers"))) rows.push_back({name, value});
  if (!rows.empty()) story.sections.push_back({"Measured under the plan", table({"number", "value"}, rows)});
  if (!record.ledger.is_null()) story.sections.push_back({"Evidence", evidence_tables(record.ledger)});
  return story;
}

}  // namespace faultline::report
