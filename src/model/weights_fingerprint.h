// One word for all weights of a model: what two machines compare before their results are counted together, because a
// model's name or path says nothing about what lies there.
#pragma once

#include <string>

#include "model/causal_lm.h"

namespace faultline {

// XXH64 of all weights in the precision they were loaded in, and of their names.
std::string weights_fingerprint(CausalLm& model);

}  // namespace faultline
