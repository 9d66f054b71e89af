// `faultline --version`: what this program is made of, for reports and records.
#include "version.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/output.h"
#include "numeric/apply.h"
#include "numeric/cpu/kernels.h"

namespace faultline::cli {

nlohmann::ordered_json versions_json() {
  return {{"version", FAULTLINE_VERSION},
          {"commit", FAULTLINE_COMMIT},
          {"torch", FAULTLINE_TORCH_VERSION},
          {"cuda_kernels", has_cuda_kernels()},
          {"cpu_instructions", cpu::kernels().name}};
}

ExitCode print_version(const Globals& globals) {
  const char* instructions = cpu::kernels().name;
  if (globals.json) {
    print_json(versions_json());
    return ExitCode::kOk;
  }
  print(fmt::format("faultline {} (commit {})\ntorch {}, CUDA kernels: {}, CPU instructions: {}\n", FAULTLINE_VERSION,
                    FAULTLINE_COMMIT, FAULTLINE_TORCH_VERSION, has_cuda_kernels() ? "yes" : "no", instructions));
  return ExitCode::kOk;
}

}  // namespace faultline::cli
