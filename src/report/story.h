// What a page says about one record: a verdict in words, then sections. A kind of record is one function from the
// record to its story, in the file of its name; kinds.cpp lists them. To add a kind: write that function, declare it
// here, name it there.
#pragma once

#include <string>
#include <vector>

#include "report/html.h"
#include "report/record.h"

namespace faultline::report {

enum class Tone { kGood, kBad, kDoubt, kPlain };  // doubt: something is missing or could not be decided
const char* tone_name(Tone tone);

struct Section {
  std::string title;
  Html body;
};

struct Story {
  Tone tone = Tone::kPlain;
  std::string headline;            // the verdict, one sentence
  std::vector<std::string> words;  // what a reader must know beside it
  std::vector<Section> sections;
};

Story tell(const LoadedRecord& record);  // by its kind; an unknown one generically

Story eval_story(const LoadedRecord& record);
Story train_story(const LoadedRecord& record);
Story experiment_story(const LoadedRecord& record);
Story triage_story(const LoadedRecord& record);
Story race_story(const LoadedRecord& record);
Story diagnosis_story(const LoadedRecord& record);
Story campaign_story(const LoadedRecord& record);  // of diagnoses
Story scan_story(const LoadedRecord& record);
Story screen_story(const LoadedRecord& record);
Story fleet_story(const LoadedRecord& record);  // of screens
Story demo_story(const LoadedRecord& record);
Story plan_story(const LoadedRecord& record);
Story divergence_story(const LoadedRecord& record);  // of two traces
Story anything_story(const LoadedRecord& record);

// Sections that several kinds share.
Html evidence_tables(const Json& evidence);  // the tap's report: rules, realised error by layer, coverage
Html curves_of(const std::vector<const LoadedRecord*>& records);  // every numeric series in their events
Html rerun(const LoadedRecord& record);
Html provenance(const LoadedRecord& record);  // recipe, seeds, versions, machine
// Several records: what differs in their recipes, their numbers on one chart.
std::vector<Section> compare(const std::vector<LoadedRecord>& records, const std::vector<Story>& stories);

}  // namespace faultline::report
