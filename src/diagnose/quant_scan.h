// What each number format would do to a model: to its weights, to what its linears read and to what its layers hand on.
// Per tensor: signal to noise, the share lost in the dead zone, the share clipped, the largest error, and how far its
// largest channel stands above the others. The arithmetic is that of the fault `quantize`, on copies.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "model/causal_lm.h"

namespace faultline::diagnose {

struct ScanRow {
  int64_t layer = -1;
  std::string place, surface, format;  // surface: weight, input, layer_output
  double sqnr_db = 0;                  // infinite where nothing changed
  double dead = 0, clipped = 0;        // shares of the non-zero, of all elements
  double max_error = 0;
  double outlier = 0;  // the largest channel's maximum over the median channel's
};

struct ScanOptions {
  std::vector<std::string> formats;  // empty: all
  at::Tensor tokens;                 // (1, T) int64
  bool weights = true, activations = true;
};

std::vector<ScanRow> quant_scan(model::CausalLm& model, const ScanOptions& options);

// Worst first. suggested: of each layer the relative error of its output, a strength that noise would have.
Json scan_json(std::vector<ScanRow> rows);

}  // namespace faultline::diagnose
