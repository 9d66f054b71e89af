// The recipe section `aqn:`: a schedule by its name with its parameters beside it, where the noise goes and in which
// unit.
#pragma once

#include "aqn/norm_noise.h"
#include "base/config.h"

namespace faultline {

void register_aqn_section();  // of the recipe's schema; once

AqnSpec read_aqn(const Node& aqn);  // validated; reads the verdict's file where one is named

}  // namespace faultline
