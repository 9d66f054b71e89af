// Why a number may not be reported: one type and one list of codes for C++ and Python. What a program decides, it
// decides by the code; the sentence is for people. Python gets the list through torch.ops.faultline.complaint_codes().
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace faultline {

using Json = nlohmann::json;  // base/json.h

enum class ComplaintCode {
  kNeverFired,
  kAsleep,
  kUnselected,
  kUnchanged,
  kVisible,
  kFlips,
  kStrength,
  kIssued,
  kCounts,
  kUnpredicted,
  kPartial,
  kWeightChanged,
  kForked,
  kHidden,
  kRepeats,
  kCanary,
  kIdle,
  kNoEvidence,
  kNoiseMissing,
  kNoiseOverwritten,
  kNoiseStrength,
  kNoiseSilent,
  kStill,
  kUnfaultedKernels,
  kLateBackend,
  kOtherProcess,
  kUnproven,
};

struct Complaint {
  ComplaintCode code;
  std::string rule;   // its name; "": of the whole run
  std::string place;  // module path, or what else says where; "": everywhere
  std::string sentence;
};

struct ComplaintKind {
  ComplaintCode code;
  std::string_view name;     // "never_fired"
  std::string_view meaning;  // one line for documents and help
};
std::span<const ComplaintKind> complaint_kinds();
std::string_view complaint_name(ComplaintCode code);

Json to_json(const Complaint& complaint);  // {"code", "rule", "place", "sentence"}
Json to_json(const std::vector<Complaint>& complaints);
// From a record. Records made before complaints had codes hold sentences alone: their code is `unproven`.
Complaint complaint_from_json(const Json& json);

std::vector<std::string> sentences(const std::vector<Complaint>& complaints);
std::string joined_sentences(const std::vector<Complaint>& complaints);  // with "; " between them

}  // namespace faultline
