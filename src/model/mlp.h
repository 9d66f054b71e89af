// The feed-forward part of a layer: SwiGLU, or a mixture of such experts of which a router chooses a few for each token
// (and, for qwen2_moe, a shared one that every token passes).
#pragma once

#include <vector>

#include "model/linear.h"

namespace faultline::model {

struct Mlp {
  site::PlaceId place = site::kNowhere;
  site::PlaceId activation = site::kNowhere;
  Linear gate_up, down;

  at::Tensor operator()(const at::Tensor& x) const;  // (N, hidden) -> (N, hidden)
};

struct Moe {
  site::PlaceId place = site::kNowhere;
  Linear router;
  std::vector<Mlp> experts;
  int64_t experts_per_token = 0;
  bool normalise_weights = false;
  Mlp shared;          // without weights: none
  Linear shared_gate;  // (1, hidden): how much of the shared expert a token takes

  at::Tensor operator()(const at::Tensor& x) const;
};

}  // namespace faultline::model
