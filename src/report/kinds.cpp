// The kinds of record that have a story of their own. A name that is not here is told generically.
#include <algorithm>
#include <iterator>

#include "report/story.h"

namespace faultline::report {
namespace {

struct Kind {
  const char* name;
  Story (*tell)(const LoadedRecord&);
};

constexpr Kind kKinds[] = {
    {"eval", eval_story},         {"train", train_story},        {"experiment", experiment_story},
    {"triage", triage_story},     {"race", race_story},          {"diagnose", diagnosis_story},
    {"campaign", campaign_story}, {"scan", scan_story},          {"demo", demo_story},
    {"screen", screen_story},     {"screen_fleet", fleet_story}, {"plan", plan_story},
    {"compare", divergence_story}};

}  // namespace

const char* tone_name(Tone tone) {
  switch (tone) {
    case Tone::kGood: return "good";
    case Tone::kBad: return "bad";
    case Tone::kDoubt: return "doubt";
    default: return "plain";
  }
}

Story tell(const LoadedRecord& record) {
  const auto* known =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) { return record.kind == kind.name; });
  Story story = known == std::end(kKinds) ? anything_story(record) : known->tell(record);
  if (!record.missing.empty() && story.tone != Tone::kBad) story.tone = Tone::kDoubt;
  return story;
}

}  // namespace faultline::report
