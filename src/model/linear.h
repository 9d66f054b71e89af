// A linear layer with its place, and how its product is computed: by torch where gradients are wanted, by our own
// product where it is the faster one while generating. Several linears that read the same
// input may be fused into one (q, k, v; gate, up): one operator call at the fused place, whose parts remain sites of
// their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "site/place.h"

namespace faultline::model {

struct Linear {
  struct Part {
    site::PlaceId place;
    int64_t size;  // output features
  };

  // An adapter: scale * up(down(x)) is added to the product. Its places have the role lora, which no rule for linears
  // means.
  struct LowRank {
    site::PlaceId down_place = site::kNowhere, up_place = site::kNowhere;
    at::Tensor down, up;  // (rank, in), (out, rank); undefined: none
    double scale = 0;
  };

  site::PlaceId place = site::kNowhere;
  at::Tensor weight;        // (out, in)
  at::Tensor bias;          // (out), or undefined
  std::vector<Part> parts;  // of a fused linear, in the order of their rows; empty: not fused
  LowRank adapter;

  at::Tensor operator()(const at::Tensor& x) const;  // (N, in) -> (N, out)
};

}  // namespace faultline::model
