// What a page says about one record: a verdict in words, then sections. A kind of record is one function from the
// record to its story, in the file of its name; kinds.cpp lists them. To add a kind: write that function, declare it
// here, name it there.
#pragma once

#include <string>
#include <vector>

#include "report/html.h"
#include "report/loaded_record.h"

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

Story tell_eval(const LoadedRecord& record);
Story tell_train(const LoadedRecord& record);
Story tell_experiment(const LoadedRecord& record);
Story tell_triage(const LoadedRecord& record);
Story tell_race(const LoadedRecord& record);
Story tell_diagnosis(const LoadedRecord& record);
Story tell_campaign(const LoadedRecord& record);  // of diagnoses
Story tell_scan(const LoadedRecord& record);
Story tell_demo(const LoadedRecord& record);
Story tell_anything(const LoadedRecord& record);

// Sections that several kinds share.
Html evidence_tables(const Json& evidence);  // the tap's report: rules, realised error by layer, coverage
Html curves_of(const std::vector<const LoadedRecord*>& records);  // every numeric series in their events
Html rerun(const LoadedRecord& record);
Html provenance(const LoadedRecord& record);  // recipe, seeds, versions, machine
// Several records: what differs in their recipes, their numbers on one chart.
std::vector<Section> compare(const std::vector<LoadedRecord>& records, const std::vector<Story>& stories);

}  // namespace faultline::report
