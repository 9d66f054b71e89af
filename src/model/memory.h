// What a model of a shape takes, and what a device has left: asked before a weight is read.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "model/config.h"

namespace faultline::model {

int64_t weight_bytes(const ModelConfig& config, at::ScalarType dtype);  // norms are kept in fp32
int64_t available_memory(const at::Device& device);                     // of a CPU: what the system says (build.h)
std::string human_bytes(int64_t bytes);                                 // "15.2 GB"

}  // namespace faultline::model
