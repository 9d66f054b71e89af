#include "triage/repetitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "base/files/mapped_file.h"
#include "base/text.h"

namespace faultline::triage {
namespace {

struct RepeatedDigest {
  uint64_t digest = 0, size = 0;
};

RepeatedDigest digest_of_bytes(const Repeated& one, const std::filesystem::path& folder) {
  if (const std::string why = complain_trial_file(folder, one.file); !why.empty()) throw MetricsFileError(why);
  const std::filesystem::path path = folder / one.file;
  if (std::filesystem::file_size(path) == 0) return {hash64(""), 0};
  const MappedFile mapped(path);
  const auto bytes = mapped.bytes();
  return {hash64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), bytes.size()};
}

// By value, so that 1 and 1.0 are the same, and by order.
RepeatedDigest digest_of_values(const Repeated& one, const std::filesystem::path& folder) {
  RepeatedDigest found;
  (void)read_metrics(folder, one.file, [&](const MetricRecord& record) {
    const std::optional<double> value = record.number(one.metric);
    if (!value) return;
    const double canonical = std::isnan(*value) ? std::numeric_limits<double>::quiet_NaN() : *value + 0.0;
    found.digest = mix64(found.digest, std::bit_cast<uint64_t>(canonical));
    ++found.size;
  });
  if (found.size == 0) throw MetricsFileError(fmt::format("{}: no record holds {}", one.file, one.metric));
  return found;
}

// Of a trial's result, which another process made.
std::map<std::string, std::string> digests_of(const Json& result) {
  std::map<std::string, std::string> digests;
  if (!result.is_object() || !result.contains("repeated") || !result.at("repeated").is_array()) return digests;
  for (const Json& one : result.at("repeated"))
    if (one.is_object() && one.contains("name") && one.at("name").is_string() && one.contains("digest") &&
        one.at("digest").is_string())
      digests[one.at("name").get<std::string>()] = one.at("digest").get<std::string>();
  return digests;
}

// Trials of one cell by the digest of one thing; indices into the list of all trials.
using Agreement = std::map<std::string, std::vector<size_t>>;

// The largest group; of equals, the one with the earliest trial.
Agreement::const_iterator reference_of(const Agreement& groups, const std::vector<RecordedTrial>& trials) {
  const auto earliest = [&](const std::vector<size_t>& group) {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const size_t i : group) first = std::min(first, trials[i].index);
    return first;
  };
  return std::max_element(groups.begin(), groups.end(), [&](const auto& a, const auto& b) {
    if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
    return earliest(a.second) > earliest(b.second);
  });
}

std::string sentence_of(const std::string& name, const std::string& digest, size_t agree, const std::string& reference,
                        size_t agree_with_reference, size_t all) {
  if (agree < agree_with_reference)
    return fmt::format("{}: digest {}, where {} of {} trials of the cell have {}", name, digest, agree_with_reference,
                       all, reference);
  return fmt::format(
      "{}: digest {}, where the cell's first trials have {}; {} of {} trials each, so which of them is wrong "
      "cannot be told, and the earliest counts as the reference",
      name, digest, reference, agree, all);
}

void judge_group(const std::string& name, const Agreement& groups, std::vector<RecordedTrial>& trials) {
  const auto reference = reference_of(groups, trials);
  size_t all = 0;
  for (const auto& [digest, group] : groups) all += group.size();
  for (const auto& [digest, group] : groups) {
    if (digest == reference->first) continue;
    for (const size_t i : group) {
      TrialResult& result = trials[i].result;
      if (result.outcome == "differs") continue;  // in something else already
      result.verdict = TrialVerdict::kFail, result.outcome = "differs", result.severity = "workload_failed";
      result.sentence = sentence_of(name, digest, group.size(), reference->first, reference->second.size(), all);
    }
  }
}

}  // namespace

Schema repeated_schema() {
  const Schema of_metric = Schema::map()
                               .field("file", metrics_file_schema(), {.required = true})
                               .field("metric", Schema::string({.min = 1, .max = 200}), {.required = true});
  return Schema::list(Schema::any_of({trial_file_schema(), of_metric}).described_as("a file, or {file, metric}"),
                      {.max = 100});
}

std::vector<Repeated> read_repeated(const Node& node) {
  std::vector<Repeated> repeated;
  for (const Node& one : node.items())
    repeated.push_back(one.is_string() ? Repeated{one.as_string(), ""}
                                       : Repeated{one.at("file").as_string(), one.at("metric").as_string()});
  return repeated;
}

Json digest_repeated(const std::vector<Repeated>& repeated, const std::filesystem::path& folder) {
  Json digests = Json::array();
  for (const Repeated& one : repeated) {
    Json json = {{"name", one.name()}, {"digest", ""}, {"size", 0}, {"wrong", ""}};
    try {
      const RepeatedDigest found = one.metric.empty() ? digest_of_bytes(one, folder) : digest_of_values(one, folder);
      json["digest"] = fmt::format("{:016x}", found.digest), json["size"] = found.size;
    } catch (const Error& error) {
      json["wrong"] = error.what();
    }
    digests.push_back(std::move(json));
  }
  return digests;
}

std::vector<RecordedTrial> judge_repetitions(std::vector<RecordedTrial> trials) {
  std::map<std::pair<std::string, std::string>, Agreement> cells;  // by cell and name
  for (size_t i = 0; i < trials.size(); ++i) {
    const TrialResult& result = trials[i].result;
    if (result.verdict != TrialVerdict::kPass) continue;
    for (const auto& [name, digest] : digests_of(result.result)) cells[{trials[i].cell, name}][digest].push_back(i);
  }
  for (const auto& [where, groups] : cells) judge_group(where.second, groups, trials);
  return trials;
}

}  // namespace faultline::triage
