// What libfaultline_nccl.so offers to libfaultline.so, which loads it when NCCL is asked for. Both are built against
// one torch, so its types cross as they are; an error comes as torch's own exception.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

// NCCL's process group, owned by the caller (c10::intrusive_ptr<c10d::Backend>::reclaim).
extern "C" __attribute__((visibility("default"))) c10d::Backend* faultline_make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks, std::int64_t timeout_ms);
