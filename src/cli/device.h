// The device a command works on. The program is linked without torch_cuda, so that it starts at once and runs where
// there is none; asking for a GPU loads it.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace faultline::cli {

// "cpu", "cuda", "cuda:1". UsageError for another name; RuntimeFailure where CUDA was asked for and is not there.
c10::Device open_device(const std::string& name);

}  // namespace faultline::cli
