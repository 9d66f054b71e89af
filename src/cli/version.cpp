// `faultline --version`: what this program is made of.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/command.h"
#include "cli/output.h"
#include "numeric/versions.h"

namespace faultline::cli {

ExitCode print_version(const Globals& globals) {
  const Json made = numeric::versions();
  if (globals.json)
    print_json(made);
  else
    print(fmt::format("faultline {} (commit {})\ntorch {}, CUDA kernels: {}, CPU instructions: {}\n",
                      made["version"].get<std::string>(), made["commit"].get<std::string>(),
                      made["torch"].get<std::string>(), made["cuda_kernels"].get<bool>() ? "yes" : "no",
                      made["cpu_instructions"].get<std::string>()));
  return ExitCode::kOk;
}

}  // namespace faultline::cli
