#include "numeric/versions.h"

#include "base/json.h"
#include "numeric/apply.h"
#include "numeric/cpu/kernels.h"
#include "version.h"

namespace faultline::numeric {

Json versions() {
  return {{"version", FAULTLINE_VERSION},
          {"commit", FAULTLINE_COMMIT},
          {"torch", FAULTLINE_TORCH_VERSION},
          {"cuda_kernels", has_cuda_kernels()},
          {"cpu_instructions", cpu::kernels().name}};
}

}  // namespace faultline::numeric
