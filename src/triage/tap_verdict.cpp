#include "triage/tap_verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"

namespace faultline::triage {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEvidence = size_t{64} << 20;  // bytes of a process's file
constexpr size_t kMostEvidenceFiles = 10'000;
constexpr int64_t kVerdictFormat = 1;  // of verdict-*.json: python/faultline/evidence.py

std::vector<fs::path> evidence_files(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool regular = fs::is_regular_file(entry.symlink_status(ignored));
    if (regular && name.starts_with(prefix) && name.ends_with(".json")) files.push_back(entry.path());
    if (files.size() == kMostEvidenceFiles) break;
  }
  std::sort(files.begin(), files.end());
  return files;
}

void add_process(const Json& entry, TapVerdict& verdict) {
  ++verdict.processes;
  verdict.ended += entry.at("ended").get<bool>();
  for (const Json& rule : entry.at("report").at("rules")) {
    auto& sums = verdict.rules[rule.at("name").get<std::string>()];
    for (const char* count : {"calls", "elements", "changed"})
      sums[count] += static_cast<int64_t>(rule.at(count).get<double>());
  }
}

// -> whether its script had failed
bool add_judgement(const Json& json, TapVerdict& verdict) {
  if (json.at("format") != kVerdictFormat) throw RuntimeFailure("a judgement of another version");
  for (const Json& one : json.at("complaints").get_ref<const Json::array_t&>())
    verdict.complaints.push_back(complaint_from_json(one));
  return !json.at("script_error").is_null();
}

}  // namespace

TapVerdict read_tap_verdict(const fs::path& evidence, EvidenceUse use) {
  TapVerdict verdict;
  if (use == EvidenceUse::kIgnored) return verdict;
  bool somebody_complains_of_a_whole_script = false;
  const auto each = [&](std::string_view prefix, const auto& add) {
    for (const fs::path& file : evidence_files(evidence, prefix)) try {
        add(parse_json_text(read_file(file, kMaxEvidence), file.filename().string()));
      } catch (const std::exception& error) {  // what a killed or broken process left
        verdict.complaints.push_back({ComplaintCode::kNoEvidence, "", "",
                                      fmt::format("{}: not to be read: {}", file.filename().string(), error.what())});
        somebody_complains_of_a_whole_script = true;
      }
  };
  each("process-", [&](const Json& json) { add_process(json, verdict); });
  each("verdict-", [&](const Json& json) {
    const size_t before = verdict.complaints.size();
    const bool script_failed = add_judgement(json, verdict);
    if (verdict.complaints.size() > before && !script_failed) somebody_complains_of_a_whole_script = true;
  });
  verdict.of_failed_script = !verdict.complaints.empty() && !somebody_complains_of_a_whole_script;
  if (use == EvidenceUse::kRequired && verdict.processes == 0)
    verdict.complaints.push_back(
        {ComplaintCode::kNoEvidence, "", "",
         "no process has written evidence; run the command under python -m faultline --recipe, or set FAULTLINE_RECIPE "
         "in the shell"});
  return verdict;
}

Json to_json(const TapVerdict& verdict) {
  Json codes = Json::object();
  for (const Complaint& complaint : verdict.complaints) {
    Json& count = codes[std::string(complaint_name(complaint.code))];
    count = count.is_null() ? 1 : count.get<int64_t>() + 1;
  }
  return {{"processes", verdict.processes},
          {"ended", verdict.ended},
          {"rules", verdict.rules},
          {"complaints", faultline::to_json(verdict.complaints)},
          {"codes", codes}};
}

std::string unproven(const TapVerdict& verdict, bool failed) {
  if (verdict.complaints.empty() || (failed && verdict.of_failed_script)) return "";
  constexpr size_t kMostShown = 3;
  const std::vector<Complaint>& all = verdict.complaints;
  const std::vector<Complaint> first(all.begin(),
                                     all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), kMostShown)));
  return fmt::format("the fault is not proven: {}{}", joined_sentences(first),
                     all.size() > kMostShown ? fmt::format("; and {} more", all.size() - kMostShown) : "");
}

}  // namespace faultline::triage
