// The portable arithmetic on a device that it serves (FAULTLINE_ARITHMETIC=portable): elementary operation by
// elementary operation and kind by kind, against the CPU's kernels.
#include <fmt/format.h>

#include "cli/selftest/selftest.h"
#include "numeric/portable/portable.h"
#include "numeric/portable/proof.h"

namespace faultline::cli {

std::vector<Check> portable_checks(const SelftestOptions& options) {
  std::vector<Check> checks;
  if (!numeric::portable::serves(options.device)) return checks;
  for (const auto& findings :
       {numeric::portable::elementary_findings(options.device), numeric::portable::kind_findings(options.device)}) {
    for (const numeric::portable::Finding& finding : findings)
      checks.push_back({fmt::format("portable = CPU: {}", finding.name), [finding] { return finding.complaint; }});
  }
  return checks;
}

}  // namespace faultline::cli
