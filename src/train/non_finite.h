// Names the operator that first made a number that is not finite. A guard: while it lives every operator of the process
// has its results checked, which is slow; so the trainer runs a step that went wrong a second time under it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace faultline::train {

class NonFiniteWatch {
 public:
  NonFiniteWatch();  // one at a time
  ~NonFiniteWatch();
  NonFiniteWatch(const NonFiniteWatch&) = delete;
  NonFiniteWatch& operator=(const NonFiniteWatch&) = delete;

  // "aten::mul at model.layers.3.mlp.down_proj (layer 3), actor_forward"; nothing: all were finite
  std::optional<std::string> first() const;

 private:
  uint64_t handle_;
};

}  // namespace faultline::train
