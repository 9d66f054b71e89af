// Digests and checksums of tensors, on the device where they are.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>

#include "numeric/apply.h"
#include "numeric/apply_device.h"
#include "numeric/cpu/kernels.h"
#include "numeric/digest.h"
#include "numeric/portable/portable.h"
#ifdef FAULTLINE_WITH_CUDA
#include "numeric/cuda/kernels.h"
#include "site/torch_support.h"
#endif

namespace faultline::numeric {
namespace {

#ifdef FAULTLINE_WITH_CUDA
// The digest's keys, once a device.
const uint32_t* device_digest_keys(const at::Device& device) {
  static std::mutex mutex;
  static std::map<int, at::Tensor> copies;
  const std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& copy = copies[device.index()];
  if (!copy.defined()) {
    uint32_t words[2 * kDigestWords];
    fill_digest_keys(words);
    copy = at::from_blob(words, {2 * kDigestWords}, at::kInt).to(device);
  }
  return reinterpret_cast<const uint32_t*>(copy.const_data_ptr<int32_t>());
}
#endif

int64_t cpu_digest(const void* bytes, int64_t size) {
  const int64_t tiles = (size + kDigestTile - 1) / kDigestTile;
  std::mutex mutex;
  uint64_t total = 0;
  at::parallel_for(0, tiles, 8, [&](int64_t first, int64_t last) {
    const uint64_t part = cpu::kernels().digest_tiles(bytes, size, first, last);
    const std::lock_guard<std::mutex> lock(mutex);
    total = fold61(total + part);
  });
  return static_cast<int64_t>(finish_digest(total, static_cast<uint64_t>(tiles), static_cast<uint64_t>(size)));
}

}  // namespace

void digest_into(const at::Tensor& x, int64_t* state, int64_t pieces) {
  if (x.layout() != at::kStrided) throw UsageError("a digest needs a dense tensor");
  FL_ASSERT(pieces > 0 && x.numel() % pieces == 0);
  const at::Tensor bytes = x.contiguous();
  const int64_t size = bytes.numel() / pieces * static_cast<int64_t>(bytes.element_size());
  if (portable::serves(x.device())) return portable::digest_into(bytes, state, pieces);
  if (x.is_cpu()) {
    for (int64_t i = 0; i < pieces; ++i)
      state[i * kDigestStateWords] = cpu_digest(static_cast<const char*>(bytes.const_data_ptr()) + i * size, size);
    return;
  }
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    cuda::digest(bytes.const_data_ptr(), size, pieces, device_digest_keys(x.device()),
                 reinterpret_cast<uint64_t*>(state), site::current_stream(x.device()));
    return;
  }
#endif
  refuse_device(x);
}

at::Tensor digest(const at::Tensor& x) {
  const at::Tensor state = at::zeros({kDigestStateWords}, x.options().dtype(at::kLong).layout(at::kStrided));
  digest_into(x, state.mutable_data_ptr<int64_t>());
  return state.select(0, 0);
}

at::Tensor checksum(const at::Tensor& x) {
  if (x.layout() != at::kStrided) throw UsageError("a checksum needs a dense tensor");
  const at::Tensor values = x.contiguous();
  const int element_size = static_cast<int>(values.element_size());
  if (element_size > 8)
    throw UsageError(fmt::format("a checksum needs elements of 1, 2, 4 or 8 bytes; {} has {}",
                                 c10::toString(x.scalar_type()), element_size));
  if (portable::serves(x.device())) return portable::checksum(values);
  if (x.is_cpu()) {
    std::atomic<uint64_t> total{0};
    at::parallel_for(0, values.numel(), 1 << 16, [&](int64_t first, int64_t last) {
      total += cpu::kernels().checksum(values.const_data_ptr(), element_size, first, last);
    });
    return at::scalar_tensor(static_cast<int64_t>(total.load()), at::kLong);
  }
#ifdef FAULTLINE_WITH_CUDA
  if (x.is_cuda()) {
    const c10::DeviceGuard guard(x.device());
    at::Tensor state = at::zeros({}, x.options().dtype(at::kLong));
    cuda::checksum(values.const_data_ptr(), element_size, values.numel(),
                   reinterpret_cast<uint64_t*>(state.mutable_data_ptr<int64_t>()), site::current_stream(x.device()));
    return state;
  }
#endif
  refuse_device(x);
}

}  // namespace faultline::numeric
