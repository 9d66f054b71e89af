// Faults on tensors: what operators, taps and the command line call. A call changes the tensor in place, below
// autograd, on the tensor's own device and current stream, and adds to a ledger row; it never synchronises. Everything
// is checked before the first element changes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "numeric/digest.h"
#include "numeric/lower.h"
#include "numeric/rule.h"

namespace faultline::numeric {

// The tensors of one call, all on the device of the tensor that is faulted.
struct CallTensors {
  std::optional<at::Tensor> control;           // int32[10], the bytes of a Control; absent: CallPoint counts
  std::optional<at::Tensor> ledger;            // int64[kLedgerWords]; absent: nothing is counted
  std::optional<at::Tensor> row_keys;          // int64, one a row; for keyed_by: row
  std::optional<at::Tensor> replacement = {};  // like x; for accumulate, approximate and stale
  at::Tensor* reference = nullptr;  // what a dead zone measures itself by: used where defined, and else kept there
};

struct CallPoint {
  uint32_t step = 0;
  uint32_t call = 0;
  std::optional<double> strength;  // in place of the rule's leading parameter
};

void apply_(const at::Tensor& x, const Rule& rule, const Identity& identity, const CallPoint& point,
            const CallTensors& tensors = {});
// The same for callers that keep a site's keys. `control` counts where tensors.control is absent.
void apply_(const at::Tensor& x, const Rule& rule, const Keys& keys, const Control& control,
            const CallTensors& tensors = {});

at::Tensor make_ledger(at::Device device);            // zeros
at::Tensor ledger_columns(const at::Tensor& ledger);  // float64 on the CPU, by LedgerColumn
at::Tensor make_control(const at::Device& device, const Rule& rule, const CallPoint& point);  // armed

at::Tensor digest(const at::Tensor& x);    // int64 scalar on x's device; order-aware
at::Tensor checksum(const at::Tensor& x);  // int64 scalar: the plain integer sum

// Throws UsageError unless x is a dense floating-point tensor whose elements all have their own memory.
void check_tensor(const at::Tensor& x, const char* name);
Dtype dtype_of(const at::Tensor& x);
TensorShape shape_of(const at::Tensor& x);

bool is_capturing(const at::Tensor& x);  // a CUDA graph is being captured on x's current stream

bool has_cuda_kernels();  // whether this library was built with them

// A digest written into a table, by one kernel: for loops that take hundreds of them and read all at once.

// `state`: kDigestStateWords words a piece on x's device, those of work zero before and after. x is taken as so many
// pieces of equal size, one after the other. The work is queued on x's current stream.
void digest_into(const at::Tensor& x, int64_t* state, int64_t pieces = 1);

}  // namespace faultline::numeric
