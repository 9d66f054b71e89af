// The last act of the demo: known bytes through the collectives of four ranks, once clean and once with a bit flipped
// in layer 7's all-gather on rank 2. The first must pass, the second must be caught and blamed on that collective.
#include <fmt/format.h>

#include "base/files/file.h"
#include "base/text.h"
#include "cli/demo/demo.h"
#include "cli/output.h"
#include "race/run.h"

namespace faultline::cli {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kLayer = 7, kRank = 2;

race::RunResult run(const Stage& stage, bool flip, race::Config& config) {
  config = race::parse_config(race::smoke_config());
  config.seed = stage.seed;
  if (flip) {
    race::Injection injection;
    injection.layer = kLayer, injection.rank = kRank, injection.iteration = 3;
    config.inject.push_back(injection);
  }
  race::RunOptions options;
  options.ranks = kRanks;
  return race::run_threads(config, options);
}

}  // namespace

Act race_act(Stage& stage) {
  Act act{.name = "race"};
  race::Config config;
  const race::RunResult clean = run(stage, false, config);
  act.record["clean"] = race::to_json(clean, config);
  const race::RunResult broken = run(stage, true, config);
  act.record["broken"] = race::to_json(broken, config);
  act.record["planted"] = {{"target", "comm_output"}, {"operation", "all_gather"}, {"layer", kLayer}, {"rank", kRank}};
  act.record["file"] = "race.json";
  record::write_result(stage.folder / "race.json", act.record["broken"], stage.maker);

  std::string caught;
  bool attributed = false;
  for (const race::RankEvidence& rank : broken.evidence) {
    for (const race::TimedEvent& event : rank.findings.events.items()) {
      attributed |= event.event.layer == kLayer && event.event.rank == kRank && event.event.operation == "all_gather";
      if (caught.empty()) caught = race::log_line(event);
    }
  }
  const bool silent = clean.verdict == race::Verdict::kPass;
  act.as_it_should = silent && attributed && broken.verdict == race::Verdict::kFail;
  act.record["attributed"] = attributed;
  act.lines.push_back(fmt::format("{} ranks, nothing planted: {}", kRanks, clean.sentence));
  act.lines.push_back(fmt::format("one bit flipped in layer {}'s all-gather on rank {}: {}", kLayer, kRank,
                                  attributed       ? styled(Style::kGood, "caught and attributed")
                                  : caught.empty() ? styled(Style::kBad, "not caught")
                                                   : styled(Style::kBad, "caught, but blamed on something else")));
  if (!caught.empty()) act.lines.push_back(caught);
  return act;
}

}  // namespace faultline::cli
