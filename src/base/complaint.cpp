#include "base/complaint.h"

#include <array>

#include "base/error.h"
#include "base/json.h"

namespace faultline {
namespace {

using enum ComplaintCode;
constexpr std::array<ComplaintKind, 27> kKinds{{
    {kNeverFired, "never_fired", "a rule met no call that it may act on"},
    {kAsleep, "asleep", "a rule's lifetime or its `when` let it act in no call"},
    {kUnselected, "unselected", "a rule's extent selects no element"},
    {kUnchanged, "unchanged", "a rule acted and changed not one bit"},
    {kVisible, "visible", "a rule that was declared invisible changed elements"},
    {kFlips, "flips", "another number of elements changed than the rule asks for"},
    {kStrength, "strength", "the realised strength lies outside its band"},
    {kIssued, "issued", "the ledger counted other calls than the host issued"},
    {kCounts, "counts", "calls differ from calls per forward times forwards"},
    {kUnpredicted, "unpredicted", "calls cannot be predicted, so counts prove nothing"},
    {kPartial, "partial", "a site stayed silent, in part or whole, while its siblings were faulted"},
    {kWeightChanged, "weight_changed", "a weight changed while a faulted copy of it was in use"},
    {kForked, "forked", "this process was forked from the one that armed the plan"},
    {kHidden, "hidden", "compiled code calls kernels where no tap reaches them"},
    {kRepeats, "repeats", "two clean runs of the same input differ (A/A)"},
    {kCanary, "canary", "the armed plan changed nothing that is served"},
    {kIdle, "idle", "a process has computed, and no rule of the plan met a call"},
    {kNoEvidence, "no_evidence", "no process has left evidence"},
    {kNoiseMissing, "noise_missing", "AQN's noise was put on no norm"},
    {kNoiseOverwritten, "noise_overwritten", "norms that were given noise no longer carry it"},
    {kNoiseStrength, "noise_strength", "norms carry another strength of noise than the schedule asks for"},
    {kNoiseSilent, "noise_silent", "AQN's sigma was 0 through the whole run"},
    {kStill, "still", "a schedule should have moved, and the step never did"},
    {kUnfaultedKernels, "unfaulted_kernels", "kernels of a faulted family ran on the GPU without their fault"},
    {kLateBackend, "late_backend",
     "a backend of torch, or an operator of one, came after the plan was armed and computes without it"},
    {kOtherProcess, "other_process", "another rank or process cannot prove its part"},
    {kUnproven, "unproven", "something else, or a record from before complaints had codes"},
}};

}  // namespace

std::span<const ComplaintKind> complaint_kinds() { return kKinds; }

std::string_view complaint_name(ComplaintCode code) {
  const ComplaintKind& kind = kKinds[static_cast<std::size_t>(code)];
  FL_ASSERT(kind.code == code);
  return kind.name;
}

Json to_json(const Complaint& complaint) {
  return {{"code", std::string(complaint_name(complaint.code))},
          {"rule", complaint.rule},
          {"place", complaint.place},
          {"sentence", complaint.sentence}};
}

Json to_json(const std::vector<Complaint>& complaints) {
  auto list = Json::array();
  for (const Complaint& complaint : complaints) list.push_back(to_json(complaint));
  return list;
}

Complaint complaint_from_json(const Json& json) {
  if (json.is_string()) return {ComplaintCode::kUnproven, "", "", json.get<std::string>()};
  const auto text = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  Complaint complaint{ComplaintCode::kUnproven, text("rule"), text("place"), text("sentence")};
  for (const ComplaintKind& kind : kKinds) {
    if (kind.name == text("code")) complaint.code = kind.code;
  }
  return complaint;
}

std::vector<std::string> sentences(const std::vector<Complaint>& complaints) {
  std::vector<std::string> all;
  for (const Complaint& complaint : complaints) all.push_back(complaint.sentence);
  return all;
}

std::string joined_sentences(const std::vector<Complaint>& complaints) {
  std::string text;
  for (const Complaint& complaint : complaints) text += (text.empty() ? "" : "; ") + complaint.sentence;
  return text;
}

}  // namespace faultline
