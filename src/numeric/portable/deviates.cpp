#include "numeric/portable/deviates.h"

#include <ATen/ATen.h>

#include <mutex>
#include <string>
#include <vector>

namespace faultline::numeric::portable {
namespace {

constexpr int kFirstSegment = 127 << 4;   // of the fp32 number 1
constexpr int kSegmentNumbers = 1 << 13;  // sign, exponent and four bits

// {slope, base} by index, base with the sign of its word: (2, entries) on the device, once a device.
const at::Tensor& segment_table(bool half, const at::Device& device) {
  static std::mutex mutex;
  static std::map<std::pair<bool, std::string>, at::Tensor> tables;
  const std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& table = tables[{half, device.str()}];
  if (table.defined()) return table;
  std::vector<float> slopes, bases;
  const auto add = [&](const Segment& segment, bool negative) {
    slopes.push_back(segment.slope), bases.push_back(negative ? -segment.base : segment.base);
  };
  if (half) {
    for (int odd = -32767; odd < 32768; odd += 2) {
      const auto place = static_cast<int>((float_bits(static_cast<float>(odd < 0 ? -odd : odd)) >> 19));
      add(kGaussian16[place - kFirstSegment], odd < 0);
    }
  } else {
    for (int i = 0; i < kSegmentNumbers; ++i) {
      const int segment = i % (kSegmentNumbers / 2) - kFirstSegment;
      add(segment < 0 || segment >= kSegments32 ? Segment{0, 0} : kGaussian32[segment], i >= kSegmentNumbers / 2);
    }
  }
  table = at::stack({at::tensor(slopes), at::tensor(bases)}).to(device);
  return table;
}

}  // namespace

Deviates::Deviates(Dtype dtype, const at::Tensor& scale, const at::Device& device) : half_(dtype != Dtype::kFloat32) {
  at::Tensor table = segment_table(half_, device);
  if (scale.defined()) table = table * scale;
  slope_ = table.select(0, 0).to(at::kDouble), base_ = table.select(0, 1).to(at::kDouble);
  if (!half_) return;
  const at::Tensor odd = at::arange(-32767, 32768, 2, slope_.options());
  deviates_ = (odd * slope_ + base_).to(at::kFloat);
}

at::Tensor Deviates::of_halves(const at::Tensor& halves, Pool& pool) const {
  const int64_t n = halves.numel();
  at::Tensor order = pool.take(at::kShort, n), index = pool.take(at::kLong, n), result = pool.take(at::kFloat, n);
  at::bitwise_right_shift_out(order, halves, at::Scalar(int64_t{1}));
  index.copy_(order.add_(16384));
  return at::index_select_out(result, deviates_, 0, index);
}

at::Tensor Deviates::of(const at::Tensor& words, Pool& pool) const {
  if (half_) return of_halves(words.view(at::kShort), pool);
  const int64_t n = words.numel();
  at::Tensor odd = pool.take(at::kInt, n), value = pool.take(at::kFloat, n);
  at::bitwise_or_out(odd, words, at::Scalar(int64_t{1}));
  value.copy_(odd);
  at::bitwise_right_shift_out(odd, bits_of(value), at::Scalar(int64_t{19}));
  odd.bitwise_and_(kSegmentNumbers - 1);
  at::Tensor product = pool.take(at::kDouble, n), base = pool.take(at::kDouble, n);
  at::index_select_out(product, slope_, 0, odd);
  product.mul_(operand64(value, pool));
  return add_exact(product, at::index_select_out(base, base_, 0, odd), pool);
}

}  // namespace faultline::numeric::portable
