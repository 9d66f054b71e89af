#include "tap/weight_identity.h"

#include <ATen/autocast_mode.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "site/scope.h"

namespace faultline::tap {
namespace {

// By the copy's storage. The weak reference keeps the StorageImpl's address from meaning another one.
struct Casts {
  std::shared_mutex mutex;
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    CastCopy copy;  // without the parameter
  };
  std::unordered_map<const c10::StorageImpl*, Entry> entries;
  std::size_t prune_at = 1024;
};
Casts& casts() {
  static auto* all = new Casts;
  return *all;
}

}  // namespace

void note_cast(const at::Tensor& from, const at::Tensor& copy) {
  if (!from.defined() || !copy.defined() || !from.has_storage() || !copy.has_storage()) return;
  if (from.storage().is_alias_of(copy.storage()) || !copy.is_floating_point()) return;
  at::Tensor parameter = site::parameter_of_storage(from);
  int64_t start = from.storage_offset();
  if (!parameter.defined()) {
    const auto cast = cast_copy_of_storage(from);
    if (!cast) return;
    parameter = cast->parameter, start = cast->from + from.storage_offset() - cast->offset;
  }
  Casts& all = casts();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  if (all.entries.size() >= all.prune_at) {
    std::erase_if(all.entries, [](const auto& entry) { return entry.second.storage.expired(); });
    all.prune_at = std::max<std::size_t>(1024, 2 * all.entries.size());
  }
  all.entries.insert_or_assign(
      copy.storage().unsafeGetStorageImpl(),
      Casts::Entry{copy.storage().getWeakStorageImpl(),
                   c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                   CastCopy{{}, start, copy.storage_offset(), copy.sizes().vec(), copy.strides().vec()}});
}

std::optional<CastCopy> cast_copy_of_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  Casts& all = casts();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.entries.find(tensor.storage().unsafeGetStorageImpl());
  if (found == all.entries.end()) return {};
  auto parameter = found->second.parameter.lock();
  if (!parameter) return {};
  CastCopy copy = found->second.copy;
  copy.parameter = at::Tensor(std::move(parameter));
  return copy;
}

void forget_casts() {
  at::autocast::clear_cache();
  Casts& all = casts();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  all.entries.clear();
}

}  // namespace faultline::tap
