// One rule's ledger as people and programs read it: the counts, the errors, the realised strength beside the band it
// must lie in, and the complaints where the evidence is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "numeric/evidence.h"

namespace faultline::cli {

struct LedgerReport {
  numeric::Rule rule;
  numeric::LedgerNumbers numbers;
  std::optional<numeric::StrengthBand> band;
  std::vector<Complaint> complaints;  // empty: the fault happened as asked
};

LedgerReport make_report(const numeric::Rule& rule, numeric::Dtype dtype, const at::Tensor& ledger);

std::string report_text(const LedgerReport& report);
Json report_json(const LedgerReport& report);

std::string digest_text(const at::Tensor& tensor);  // 16 hexadecimal digits

}  // namespace faultline::cli
