#include "model/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "base/error.h"
#include "model/ops.h"
#include "site/boundary.h"

namespace faultline {

at::Tensor Norm::operator()(const at::Tensor& x) const {
  const Scope scope(place);
  const at::Tensor input = boundary(x, place, Surface::kInput);
  return boundary(ops::rms_norm(input, weight, epsilon), place, Surface::kOutput);
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
  if (!pending_.defined() || boundary_is_wanted(norm.place, Surface::kInput)) return norm(sum());
  const Scope scope(norm.place);
  at::Tensor output;
  std::tie(output, sum_) = ops::add_rms_norm(std::exchange(pending_, {}), sum_, norm.weight, norm.epsilon);
  return boundary(output, norm.place, Surface::kOutput);
}

}  // namespace faultline
