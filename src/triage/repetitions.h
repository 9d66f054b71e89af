// What must be the same in every trial of a cell: the bytes of a file, or the values of a metric. A trial whose digest
// is another is `differs`, and fails. Who differs is decided over the cell, not within a trial: most trials agree on
// the reference; where as many say one thing as another, nobody can tell which of them is wrong, the earliest trial
// counts as the reference, and the sentence says so.
#pragma once

#include <string>
#include <vector>

#include "triage/metrics_file.h"
#include "triage/statistics.h"

namespace faultline::triage {

struct Repeated {
  std::string file, metric;  // metric "": the file's bytes
  std::string name() const { return metric.empty() ? file : file + ": " + metric; }
};

Schema repeated_schema();  // of `same_between_trials:`
std::vector<Repeated> read_repeated(const Node& node);

// For each {name, digest, size, wrong}: size in bytes, or values; wrong: why there is no digest.
Json digest_repeated(const std::vector<Repeated>& repeated, const std::filesystem::path& folder);

// The trials with the outcome `differs` where it applies. Only trials that passed are held against each other.
std::vector<RecordedTrial> judge_repetitions(std::vector<RecordedTrial> trials);

}  // namespace faultline::triage
