#include "model/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include "model/ops.h"
#include "model/product.h"
#include "site/boundary.h"

namespace faultline::model {
namespace {

constexpr int64_t kFewRowsCuda = 8;

// On the CPU a row has the same bits in every batch; on CUDA many rows are better served by the library.
bool is_for_few_rows(const at::Tensor& x) { return !product_depends_on_rows(x.device()) || x.size(0) <= kFewRowsCuda; }

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!at::GradMode::is_enabled() && is_for_few_rows(x)) return ops::few_rows_linear(x, weight, bias);
  return at::linear(x, weight, bias);
}

at::Tensor adapted(const Linear::LowRank& adapter, const at::Tensor& x, const at::Tensor& y) {
  if (!adapter.down.defined()) return y;
  at::Tensor inner;
  {
    const site::Scope scope(adapter.down_place);
    inner = product(x, adapter.down, {});
  }
  const site::Scope scope(adapter.up_place);
  return at::add(y, product(inner, adapter.up, {}), adapter.scale);
}

bool any_part_is_wanted(const Linear& linear) {
  for (const Linear::Part& part : linear.parts)
    if (site::boundary_is_wanted(part.place, site::Surface::kOutput)) return true;
  return false;
}

at::Tensor with_parts(const Linear& linear, const at::Tensor& y) {
  std::vector<at::Tensor> columns;
  int64_t first = 0;
  for (const Linear::Part& part : linear.parts) {
    columns.push_back(site::boundary(y.narrow(-1, first, part.size), part.place, site::Surface::kOutput));
    first += part.size;
  }
  return at::cat(columns, -1);
}

}  // namespace

bool product_depends_on_rows(const c10::Device& device) { return !device.is_cpu(); }

at::Tensor Linear::operator()(const at::Tensor& x) const {
  const site::Scope scope(place);
  const at::Tensor input = site::boundary(x, place, site::Surface::kInput);
  const at::Tensor y = adapted(adapter, input, product(input, weight, bias));
  return site::boundary(any_part_is_wanted(*this) ? with_parts(*this, y) : y, place, site::Surface::kOutput);
}

}  // namespace faultline::model
