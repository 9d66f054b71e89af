// A piece of device work, captured once and replayed without the host: CUDA only. What it allocates comes from a pool
// of its own, so that a replay finds its memory as it left it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace faultline {

class DecodeGraph {
 public:
  DecodeGraph();
  ~DecodeGraph();
  DecodeGraph(const DecodeGraph&) = delete;
  DecodeGraph& operator=(const DecodeGraph&) = delete;

  void capture(const at::Device& device, const std::function<void()>& body);  // replaces what was captured before
  void replay();
  bool captured() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace faultline
