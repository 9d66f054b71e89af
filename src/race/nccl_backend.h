// NCCL as the carrier of ranks that are processes, one GPU a rank. The process group itself is in a module that is
// loaded here (race/nccl/): whoever does not ask for NCCL needs neither it nor a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace faultline::race {

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

}  // namespace faultline::race
