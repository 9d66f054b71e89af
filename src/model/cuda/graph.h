// A decode step as a CUDA graph: recorded once, then replayed by one call without a host round trip. Memory that the
// body allocates while it is recorded comes from a pool of torch's allocator that belongs to this graph, so tensors
// that the body leaves behind keep their addresses from replay to replay. Taps on the body's operators are recorded
// with them.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace faultline::model {

class DecodeGraph {
 public:
  explicit DecodeGraph(c10::Device device);
  ~DecodeGraph();
  DecodeGraph(DecodeGraph&&) noexcept;
  DecodeGraph& operator=(DecodeGraph&&) noexcept;

  // Runs the body `warmups` times on a stream of its own (libraries then have their workspaces), and records it once
  // more. The body must not synchronise, and what it allocates must not be needed after the graph is gone. A body that
  // throws, or does what cannot be recorded, leaves this object as it was.
  void capture(const std::function<void()>& body, int warmups = 2);

  // Runs the recorded step on the current stream.
  void replay();

  bool is_captured() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace faultline::model
