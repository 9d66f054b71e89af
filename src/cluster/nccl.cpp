#include "cluster/process_groups.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "base/machine.h"
#include "cluster/nccl/interface.h"

namespace faultline::cluster {
namespace {

using Maker = decltype(&faultline_make_nccl);

// By default torch's own watchdog ends a process in which a collective is late, before it could say what it saw and
// whom it waits for. Set before other threads run; what the user has set stays.
void disable_torch_watchdog() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
}

Maker open_module() {
  const auto path = library_folder() / "libfaultline_nccl.so";
  check_nccl_module(path);
  disable_torch_watchdog();
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw UsageError(fmt::format("--transport nccl: {}; use --transport threads", ::dlerror()));
  const auto maker = reinterpret_cast<Maker>(::dlsym(handle, "faultline_make_nccl"));
  FL_ASSERT(maker != nullptr);
  return maker;
}

Maker module() {
  static const Maker maker = open_module();
  return maker;
}

}  // namespace

void load_nccl() { (void)module(); }

void check_nccl_module(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw UsageError(
        fmt::format("--transport nccl: {} was not built; build where torch is a CUDA build and nccl.h is found, or use "
                    "--transport threads",
                    path.filename().string()));
}

void keep_nccl_on_loopback() { ::setenv("NCCL_SOCKET_IFNAME", "lo", 0); }

c10::Device gpu_of_rank(int local_rank, int gpus) {
  if (local_rank >= gpus)
    throw UsageError(
        fmt::format("NCCL wants a GPU a rank: this machine has {} and local rank {} needs GPU {}; start at most {} "
                    "ranks a machine, or use --transport threads, whose ranks share one",
                    gpus, local_rank, local_rank, gpus));
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
}

int count_gpus() { return c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount(); }

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                                            int rank, int ranks, std::chrono::milliseconds timeout) {
  const c10::intrusive_ptr<c10d::Store> own = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  return c10::intrusive_ptr<c10d::Backend>::reclaim(module()(own, rank, ranks, timeout.count()));
}

}  // namespace faultline::cluster
