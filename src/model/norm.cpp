#include "model/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "base/error.h"
#include "model/ops.h"
#include "site/boundary.h"

namespace faultline::model {

at::Tensor Norm::operator()(const at::Tensor& x) const {
  const site::Scope scope(place);
  const at::Tensor input = site::boundary(x, place, site::Surface::kInput);
  return site::boundary(ops::rms_norm(input, weight, epsilon), place, site::Surface::kOutput);
}

void ResidualStream::add(at::Tensor update) {
  if (at::GradMode::is_enabled()) {  // the sum's backward belongs to where it is made
    sum_ = at::add(sum(), update);
  } else {
    FL_ASSERT(!pending_.defined());
    pending_ = std::move(update);
  }
}

at::Tensor& ResidualStream::sum() {
  if (pending_.defined()) sum_ = at::add(sum_, std::exchange(pending_, {}));
  return sum_;
}

at::Tensor ResidualStream::normed(const Norm& norm) {
  if (!pending_.defined() || site::boundary_is_wanted(norm.place, site::Surface::kInput)) return norm(sum());
  const site::Scope scope(norm.place);
  at::Tensor output;
  std::tie(output, sum_) = ops::add_rms_norm(std::exchange(pending_, {}), sum_, norm.weight, norm.epsilon);
  return site::boundary(output, norm.place, site::Surface::kOutput);
}

}  // namespace faultline::model
