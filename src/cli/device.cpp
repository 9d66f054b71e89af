#include "cli/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "cli/command.h"
#include "numeric/apply.h"

namespace faultline::cli {
namespace {

// Beside the libtorch_cpu.so that is loaded already: the two must be of one build.
std::string torch_cuda_path() {
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<void*>(&at::get_num_threads), &info) == 0 || info.dli_fname == nullptr) {
    return "libtorch_cuda.so";
  }
  return (std::filesystem::path(info.dli_fname).parent_path() / "libtorch_cuda.so").string();
}

// Before anything asks torch about CUDA: it looks for its CUDA half once and remembers the answer.
void load_torch_cuda() {
  const std::string path = torch_cuda_path();
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  const std::string first = ::dlerror();
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  throw RuntimeFailure(
      fmt::format("--device cuda: this torch has no usable CUDA half ({}); use --device cpu or "
                  "install the CUDA build of torch",
                  first));
}

}  // namespace

c10::Device open_device(const std::string& name) {
  if (name == "cpu") return c10::Device(c10::kCPU);
  if (name != "cuda" && !name.starts_with("cuda:")) {
    throw UsageError(fmt::format("--device: wanted cpu, cuda or cuda:INDEX, got '{}'", name));
  }
  const uint64_t index = name == "cuda" ? 0 : parse_count("--device cuda:INDEX", name.substr(5), 0, 127);
  if (!has_cuda_kernels()) {
    throw RuntimeFailure(
        "--device cuda: this program was built without nvcc and has no CUDA kernels; use --device cpu");
  }
  load_torch_cuda();
  const int64_t count = at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (count == 0) throw RuntimeFailure("--device cuda: no CUDA device was found; use --device cpu");
  if (index >= static_cast<uint64_t>(count)) {
    throw RuntimeFailure(fmt::format("--device {}: this machine has {} CUDA devices, numbered from 0", name, count));
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace faultline::cli
