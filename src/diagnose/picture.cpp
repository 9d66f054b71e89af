#include "diagnose/picture.h"

#include <ATen/ATen.h>

#include <bit>

namespace faultline::diagnose {
namespace {

at::Tensor raw_bits(const at::Tensor& x) {  // as int64
  const auto integer = x.element_size() == 2 ? at::kShort : x.element_size() == 4 ? at::kInt : at::kLong;
  return x.contiguous().view(integer).to(at::kLong);
}

}  // namespace

double value_of_bits(const Picture& picture, uint64_t bits) {
  if (picture.width == 64) return std::bit_cast<double>(bits);
  if (picture.width == 32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  const auto half = static_cast<uint16_t>(bits);
  if (picture.mantissa == 7) return c10::BFloat16(half, c10::BFloat16::from_bits());
  return c10::Half(half, c10::Half::from_bits());
}

Picture picture_of(const Observation& observation, const at::Tensor& given, int64_t first, int64_t size) {
  const at::ScalarType dtype = given.scalar_type();
  const auto cut = [&](const at::Tensor& x) { return x.narrow(1, first, size).to(at::kCPU); };
  const at::Tensor observed = cut(given), expected = cut(observation.expected).to(at::kDouble).contiguous();
  const at::Tensor value = observed.to(at::kDouble).contiguous();
  const at::Tensor tolerance = observation.tolerance.defined() ? cut(observation.tolerance).to(at::kDouble).contiguous()
                                                               : at::zeros_like(expected);
  const at::Tensor wrong = observation.tolerance.defined() ? (value - expected).abs().le(tolerance).logical_not()
                                                           : observed.ne(expected.to(dtype));
  const at::Tensor slack = half_ulp(value.nan_to_num(), dtype) + tolerance;
  const at::Tensor columns = wrong.any(0).nonzero().reshape(-1);
  Picture picture;
  picture.mantissa = mantissa_bits(dtype);
  picture.width = static_cast<int>(observed.element_size()) * 8;
  const at::Tensor maxima = expected.abs().amax(1), spreads = expected.std(1, /*unbiased=*/false);
  picture.row_max.assign(maxima.data_ptr<double>(), maxima.data_ptr<double>() + maxima.numel());
  picture.row_spread.assign(spreads.data_ptr<double>(), spreads.data_ptr<double>() + spreads.numel());
  const auto taken = [&](const at::Tensor& x) { return x.index_select(1, columns).contiguous(); };
  const at::Tensor e = taken(expected), o = taken(value), s = taken(slack), w = taken(wrong);
  const at::Tensor t = taken(tolerance);
  const at::Tensor eb = raw_bits(taken(expected.to(dtype))), ob = raw_bits(taken(observed));
  const uint64_t mask = picture.width == 64 ? ~uint64_t{0} : (uint64_t{1} << picture.width) - 1;
  for (int64_t i = 0; i < e.numel(); ++i) {
    Element element;
    element.row = i / columns.numel(), element.column = i % columns.numel();
    element.expected = e.data_ptr<double>()[i], element.observed = o.data_ptr<double>()[i];
    element.tolerance = t.data_ptr<double>()[i];
    element.slack = s.data_ptr<double>()[i], element.changed = w.data_ptr<bool>()[i];
    element.expected_bits = static_cast<uint64_t>(eb.data_ptr<int64_t>()[i]) & mask;
    element.observed_bits = static_cast<uint64_t>(ob.data_ptr<int64_t>()[i]) & mask;
    picture.changed += element.changed;
    picture.expected_zero &= element.expected == 0;
    picture.touched.push_back(element);
  }
  return picture;
}

}  // namespace faultline::diagnose
