// apply_ on a GPU: everything is queued on the current stream; nothing waits. Compiled where there are CUDA kernels.
#ifdef FAULTLINE_WITH_CUDA
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <map>
#include <mutex>

#include "numeric/apply_device.h"
#include "numeric/cuda/kernels.h"
#include "site/torch_support.h"

namespace faultline::numeric {
namespace {

// Profiles travel to a device once; the copy lives as long as the process.
const ProfileTable* device_profile(const std::shared_ptr<const ProfileTable>& profile, const at::Device& device) {
  if (!profile) return nullptr;
  static std::mutex mutex;
  static std::map<std::pair<const ProfileTable*, int>, std::pair<std::shared_ptr<const ProfileTable>, at::Tensor>>
      copies;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& entry = copies[{profile.get(), device.index()}];
  if (!entry.first) {
    const at::Tensor bytes = at::from_blob(const_cast<ProfileTable*>(profile.get()),
                                           {static_cast<int64_t>(sizeof(ProfileTable))}, at::kByte);
    entry = {profile, bytes.to(device)};
  }
  return reinterpret_cast<const ProfileTable*>(entry.second.const_data_ptr<uint8_t>());
}

at::Tensor cuda_reference(const FaultArguments& a, const at::Tensor& x, void* stream) {
  const ReferenceArguments r{a.dtype, a.reference_kind, a.elements, a.columns};
  const int64_t count = a.axis == Axis::kToken ? a.elements / a.columns : a.axis == Axis::kChannel ? a.columns : 1;
  at::Tensor reference = at::empty({count}, x.options().dtype(at::kFloat));
  const int64_t size = cuda::reference_scratch(r, a.axis);
  at::Tensor scratch = a.axis == Axis::kTensor ? at::zeros({size}, x.options().dtype(at::kDouble))
                                               : at::empty({size}, x.options().dtype(at::kDouble));
  cuda::reference(r, a.axis, x.const_data_ptr(), scratch.mutable_data_ptr<double>(),
                  reference.mutable_data_ptr<float>(), stream);
  return reference;
}

void run_on_cuda(const at::Tensor& x, const Rule&, QuantizeArguments& q, const CallTensors&,
                 const cuda::Evidence& evidence, void* stream) {
  at::Tensor ranges;  // units, then the tensor's
  if (needs_ranges(q.format) && x.numel() > 0) {
    const int64_t units = !has_units(q.format)                         ? 0
                          : q.format.granularity == Granularity::kRow  ? q.rows
                          : q.format.granularity == Granularity::kTile ? tiles_down(q) * tiles_across(q)
                                                                       : 1;
    constexpr int64_t kWords = sizeof(UnitRange) / sizeof(float);
    ranges = at::zeros({units + 1, kWords}, x.options().dtype(at::kFloat));
    auto* all = reinterpret_cast<UnitRange*>(ranges.mutable_data_ptr<float>());
    cuda::unit_ranges(q, x.const_data_ptr(), all, all + units, stream);
    q.ranges = all;
    q.tensor = all + units;
  }
  cuda::quantize(q, traversal_of(q, evidence.ledger != nullptr), x.mutable_data_ptr(), evidence, stream);
}

void run_on_cuda(const at::Tensor& x, const Rule& rule, FaultArguments& a, const CallTensors& tensors,
                 const cuda::Evidence& evidence, void* stream) {
  const FaultInputs inputs = put_inputs(a, x, tensors, [&] { return cuda_reference(a, x, stream); });
  a.profile = device_profile(rule.what.profile, x.device());
  cuda::fault(a, traversal_of(a, evidence.ledger != nullptr), x.mutable_data_ptr(), evidence, stream);
}

}  // namespace

template <class Arguments>
void apply_on_cuda(const at::Tensor& x, const Rule& rule, Arguments arguments, const CallTensors& tensors) {
  const c10::DeviceGuard guard(x.device());
  cuda::Evidence evidence;
  if (tensors.control) evidence.control = reinterpret_cast<Control*>(tensors.control->mutable_data_ptr<int32_t>());
  if (tensors.ledger) evidence.ledger = ledger_words(*tensors.ledger);
  run_on_cuda(x, rule, arguments, tensors, evidence, site::current_stream(x.device()));
}

template void apply_on_cuda(const at::Tensor&, const Rule&, FaultArguments, const CallTensors&);
template void apply_on_cuda(const at::Tensor&, const Rule&, QuantizeArguments, const CallTensors&);

}  // namespace faultline::numeric
#endif
