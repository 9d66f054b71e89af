#include "site/backend.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Backend.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace faultline::site {
namespace {

c10::DispatchKey key_of(c10::DispatchKey functionality, c10::BackendComponent backend) {
  return c10::toRuntimePerBackendFunctionalityKey(functionality, backend);
}

bool has_data(c10::BackendComponent backend) {
  using enum c10::BackendComponent;
  return backend != MetaBit && backend != LazyBit && backend != XLABit;
}

}  // namespace

std::vector<c10::DispatchKey> accelerator_keys() {
  // What every backend has, with a kernel of its own or a fallback; most operators have one for any key.
  const auto empty = c10::Dispatcher::singleton().findSchema({"aten::empty", "memory_format"});
  std::vector<c10::DispatchKey> keys;
  for (auto b = static_cast<uint8_t>(c10::BackendComponent::CPUBit) + 1;
       b <= static_cast<uint8_t>(c10::BackendComponent::EndOfBackendKeys); ++b) {
    const auto backend = static_cast<c10::BackendComponent>(b);
    if (!has_data(backend)) continue;
    const c10::DispatchKey key = key_of(c10::DispatchKey::Dense, backend);
    if (empty && empty->hasComputedKernelForDispatchKey(key)) keys.push_back(key);
  }
  return keys;
}

bool is_dense_key(c10::DispatchKey key) { return c10::toFunctionalityKey(key) == c10::DispatchKey::Dense; }
bool is_autograd_key(c10::DispatchKey key) {
  return c10::toFunctionalityKey(key) == c10::DispatchKey::AutogradFunctionality;
}
c10::DispatchKey autograd_key(c10::DispatchKey dense) {
  return key_of(c10::DispatchKey::AutogradFunctionality, c10::toBackendComponent(dense));
}

c10::DispatchKey backend_key(c10::DispatchKeySet keys) {
  const c10::BackendComponent backend = keys.highestBackendKey();
  return backend == c10::BackendComponent::InvalidBit ? c10::DispatchKey::CPU
                                                      : key_of(c10::DispatchKey::Dense, backend);
}

std::string backend_title(c10::DispatchKey key) {
  if (key != c10::DispatchKey::PrivateUse1) return c10::toString(key);
  return fmt::format("PrivateUse1 ({})", c10::get_privateuse1_backend());
}

std::string backend_titles(const std::vector<c10::DispatchKey>& keys) {
  std::vector<std::string> titles;
  for (const c10::DispatchKey key : keys) {
    if (is_dense_key(key)) titles.push_back(backend_title(key));
  }
  return fmt::format("{}", fmt::join(titles, ", "));
}

}  // namespace faultline::site
