// What a plan has done: its evidence as JSON, and the reasons why it does not hold. An empty list of complaints is the
// only state in which a number may be reported.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/complaint.h"
#include "base/json.h"
#include "tap/census.h"
#include "tap/partial.h"

namespace faultline::tap {

struct Verdict {
  std::vector<Plan::Evidence> evidence;
  std::vector<Complaint> complaints;
  std::map<std::string, int64_t> unknown;  // operators of the censuses that are of no family: calls
  std::vector<PartialSite> allowed;        // silent, in part or whole, by the recipe's leave: a report says so first
};

// censuses: to hold call counts against calls x forwards; empty: counts are held against what the host issued.
Verdict judge(Plan& plan, const Censuses& censuses);

Json to_json(Plan& plan, const Verdict& verdict, const Censuses& censuses);

// The lines people look for in logs: "[fault npu_noise] registered 56 sites …", "[fault npu_noise] first injection …".
std::vector<std::string> log_lines(const Plan& plan, const Verdict& verdict);

// How strong the faults were in each layer while a step sampled and learnt: what the ledger gained since its start. It
// is what the report's map of layers and steps is drawn from. Sums are kept as the ledger's own digits, so that a
// step's share is exact, whatever was counted before it and in whichever order sites were met: a resumed run has the
// same numbers.
class LayerErrors {
 public:
  void begin_step(Plan& plan);
  // {"7": 0.0498, …}: the relative error (root mean square over the ledger's sample) of the layers whose faults acted
  // since then; "-1" is what belongs to no layer.
  Json end_step(Plan& plan) const;

 private:
  std::map<int64_t, at::Tensor> before_;  // by layer: (kLedgerWords) int64
};

}  // namespace faultline::tap
