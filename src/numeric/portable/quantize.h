// Number formats on a chunk of elements: formats.h's operations and order. Chunks are cut from the padded traversal of
// quantize_arguments.h, in which a row fills whole blocks.
#pragma once

#include "numeric/portable/values.h"
#include "numeric/quantize_arguments.h"

namespace faultline::numeric::portable {

struct QuantizeChunk {
  at::Tensor before, after;        // bits, flat, padding included
  at::Tensor x;                    // fp32
  at::Tensor selected, saturated;  // bool
  at::Tensor struck = {};          // int64 scalar: codes and scales of blocks; undefined: no fault in the encoding
};

struct ScaleTensors {  // fp32, one a unit
  at::Tensor multiply, divide, back, zero_point, poisoned;
  at::Tensor stored = {};  // the scale as its own format holds it, where one does
};

class QuantizeCall {
 public:
  // `x`: (rows, columns), contiguous. Finds the ranges of rows, tiles or the tensor where the format needs them.
  QuantizeCall(const QuantizeArguments& arguments, const DeviceControl& control, const at::Tensor& x);
  // Padded elements [first, first + count): multiples of a tile, but for the end.
  QuantizeChunk chunk(int64_t first, int64_t count, const at::Tensor& acts, Pool& pool) const;
  void write(int64_t first, const at::Tensor& after) const;
  // Bits at padded elements of [first, first + count).
  at::Tensor gathered(int64_t first, int64_t count) const;
  at::Tensor gathered(const at::Tensor& padded) const;  // at any of them
  at::Tensor selected(const at::Tensor& padded) const;
  const at::Tensor& struck_units() const { return struck_units_; }  // int64 scalar, or undefined
  int64_t padded_elements() const { return q_.rows * padded_columns_; }

 private:
  ScaleTensors chunk_scales(const at::Tensor& x, const at::Tensor& nonfinite, int64_t first, int64_t block,
                            Pool& pool) const;
  template <class Function>
  void over_rows(int64_t first, int64_t count, const Function& function) const;

  const QuantizeArguments& q_;
  DeviceControl control_;
  at::Tensor bits_;  // (rows, columns)
  RoundKeys keys_;
  int64_t padded_columns_;
  at::Tensor tensor_scale_, tensor_inverse_;  // of the second level, or one
  ScaleTensors unit_scales_;
  at::Tensor unit_back_, struck_units_;  // after a fault in the units' scales
};

}  // namespace faultline::numeric::portable
