#include "model/weights_fingerprint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/text.h"

namespace faultline {

std::string weights_fingerprint(CausalLm& model) {
  uint64_t hash = 0;
  for (const CausalLm::Parameter& parameter : model.parameters()) {
    const at::Tensor bytes = parameter.tensor->detach().cpu().contiguous();
    hash = mix64(hash, hash64(parameter.name));
    hash = mix64(hash, hash64({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()}));
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace faultline
