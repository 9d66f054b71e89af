#include "experiment/training_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "numeric/apply.h"
#include "numeric/ledger.h"

namespace faultline {

namespace {

std::map<int64_t, at::Tensor> sums_by_layer(Plan& plan) {
  std::map<int64_t, at::Tensor> sums;
  for (const auto& [row, words] : plan.read_ledgers()) {
    at::Tensor& sum = sums[place_of(row->place).layer];
    if (!sum.defined()) sum = at::zeros({kLedgerWords}, at::kLong);
    sum.add_(words);
  }
  return sums;
}

}  // namespace

void LayerErrors::begin_step(Plan& plan) { before_ = sums_by_layer(plan); }

Json LayerErrors::end_step(Plan& plan) const {
  Json errors = Json::object();
  for (const auto& [layer, words] : sums_by_layer(plan)) {
    const auto before = before_.find(layer);
    const at::Tensor columns = ledger_columns(before == before_.end() ? words : words - before->second);
    const double* column = columns.const_data_ptr<double>();
    const double square = column[kSumSquaredRelative] / column[kSampled];
    if (column[kSampled] > 0 && std::isfinite(square)) errors[std::to_string(layer)] = std::sqrt(square);
  }
  return errors;
}

}  // namespace faultline
