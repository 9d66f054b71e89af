// RMSNorm with its place, and the residual stream that it reads. A layer adds its result to the stream late: the sum
// and the next norm are then one pass over memory. Where a rule looks at the sum in between, it is made at once.
#pragma once

#include <ATen/core/Tensor.h>

#include "site/place.h"

namespace faultline::model {

struct Norm {
  site::PlaceId place = site::kNowhere;
  at::Tensor weight;  // fp32, whatever the model computes in
  double epsilon = 0;

  at::Tensor operator()(const at::Tensor& x) const;
};

class ResidualStream {
 public:
  explicit ResidualStream(at::Tensor start) : sum_(std::move(start)) {}

  void add(at::Tensor update);          // sum + update, perhaps not before it is read
  at::Tensor normed(const Norm& norm);  // of the sum
  at::Tensor& sum();

 private:
  at::Tensor sum_, pending_;
};

}  // namespace faultline::model
