// torch's process groups without Python: Gloo's, whose class is in the wheel, and NCCL's, one GPU a rank, in a module
// that is loaded here: whoever does not ask for NCCL needs neither it nor a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace faultline::cluster {

// `address`: of this machine, at which it listens and nowhere else; "": as Gloo's own variables say.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                                            int rank, int ranks, std::chrono::milliseconds timeout,
                                            const std::string& address);

// The module beside libfaultline.so; loaded once. UsageError where it was not built or does not load.
void load_nccl();
void check_nccl_module(const std::filesystem::path& path);  // UsageError where there is no such file

// Where all ranks are on this machine: NCCL prefers every other interface. What the user has set stays.
void keep_nccl_on_loopback();

// The GPU of a process: its number on this machine. UsageError where there are not that many.
c10::Device gpu_of_rank(int local_rank, int gpus);
int count_gpus();

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix,
                                            int rank, int ranks, std::chrono::milliseconds timeout);

}  // namespace faultline::cluster
