// What a plan has done: its evidence as JSON, and the reasons why it does not hold. An empty list of complaints is the
// only state in which a number may be reported.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/complaint.h"
#include "tap/census.h"
#include "tap/partial.h"

namespace faultline {

struct Verdict {
  std::vector<Plan::Evidence> evidence;
  std::vector<Complaint> complaints;
  std::vector<PartialSite> allowed;  // silent, in part or whole, by the recipe's leave: a report says so first
};

// censuses: to hold call counts against calls x forwards; empty: counts are held against what the host issued.
Verdict judge(Plan& plan, const Censuses& censuses);

nlohmann::ordered_json to_json(Plan& plan, const Verdict& verdict, const Censuses& censuses);

// The lines people look for in logs: "[fault npu_noise] registered 56 sites …", "[fault npu_noise] first injection …".
std::vector<std::string> log_lines(const Plan& plan, const Verdict& verdict);

}  // namespace faultline
