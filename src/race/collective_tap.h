// The tap on somebody else's collectives: a decorator of c10d::Backend that takes digests of what goes in and what
// comes out, writes them down, and may damage a result. All 46 virtual functions are forwarded; those that carry data
// are watched. It is put in place of the backends of a process group, so an unedited DDP or FSDP2 script runs through
// it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace faultline::race {

// What a tap does at each collective; one for a process, shared by its groups. Thread-safe.
class CollectiveLog {
 public:
  virtual ~CollectiveLog() = default;
  // Returns the number of the call in its group.
  virtual uint64_t before(const std::string& group, const char* operation, const std::vector<at::Tensor>& inputs) = 0;
  virtual void after(const std::string& group, const char* operation, uint64_t call,
                     const std::vector<at::Tensor>& outputs) = 0;
};

c10::intrusive_ptr<c10d::Backend> tapped(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<CollectiveLog> log,
                                         std::string group);

// Replaces every backend of the group; returns how many there were that were not tapped before.
int64_t tap_process_group(c10d::ProcessGroup& group, const std::shared_ptr<CollectiveLog>& log,
                          const std::string& name);

}  // namespace faultline::race
