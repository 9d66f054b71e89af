// What this program is made of, for records and for --version.
#pragma once

#include "base/json.h"

namespace faultline::numeric {

Json versions();  // version, commit, torch, cuda_kernels, cpu_instructions

}  // namespace faultline::numeric
