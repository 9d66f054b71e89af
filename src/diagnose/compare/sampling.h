// A part of an operator call that is a call itself: some rows of what it read and gave, of a product some columns with
// their rows of the weight, of attention some heads. It is small enough to be kept of every call, and is judged as the
// whole call would be. Which rows: those of the same tokens on every machine, so that two traces have them in common.
#pragma once

#include <optional>
#include <vector>

#include "base/json.h"
#include "diagnose/recorder.h"

namespace faultline::diagnose {

inline constexpr int64_t kSampledRows = 8, kSampledColumns = 64;

struct Sampled {
  RecordedCall call;
  Json how;  // {"kind": "rows", "rows": […]}; null: all of it
};

struct RowChoice {
  int64_t token_rows = -1;       // of the forward; -1: not known
  std::vector<int64_t> of_them;  // chosen
};

// The rows to take of so many: the forward's own where they are its tokens, else evenly spread, the last among them.
std::vector<int64_t> rows_of(int64_t count, const RowChoice& choice);
std::vector<int64_t> evenly(int64_t count, int64_t most);

// columns: of a product's weight, whichever this module keeps; weight: they, where they were taken before. Nothing
// where no part of the call is a call.
std::optional<Sampled> sampled(const RecordedCall& call, const RowChoice& choice, const std::vector<int64_t>& columns,
                               const at::Tensor& weight = {});
// On the device, kept from call to call: to hand numbers over anew would wait for the device each time.
at::Tensor index_of(const std::vector<int64_t>& numbers, const at::Device& device);

// How many columns a product has; nothing of other calls.
std::optional<int64_t> product_columns(const RecordedCall& call);

}  // namespace faultline::diagnose
