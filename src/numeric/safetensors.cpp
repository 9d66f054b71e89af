// One tensor of a .safetensors file, as faults act on it; the container is base/files/safetensors_header's.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/text.h"
#include "numeric/tensor_input.h"

namespace faultline::numeric {
namespace {

const SafetensorsEntry& choose(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& tensors,
                               const std::string& wanted) {
  std::vector<std::string> names;
  for (const SafetensorsEntry& tensor : tensors) names.push_back(tensor.name);
  if (names.empty()) throw UsageError(fmt::format("{} holds no tensor", path.string()));
  if (wanted.empty() && tensors.size() == 1) return tensors.front();
  const std::string some =
      fmt::format("{}{}", fmt::join(names.begin(), names.begin() + std::min<long>(8, std::ssize(names)), ", "),
                  names.size() > 8 ? ", …" : "");
  if (wanted.empty()) {
    throw UsageError(
        fmt::format("{} holds {} tensors; choose one with --tensor ({})", path.string(), names.size(), some));
  }
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return tensors[static_cast<std::size_t>(found - names.begin())];
  throw UsageError(
      fmt::format("{} has no tensor '{}' ({}){}", path.string(), wanted, some, did_you_mean(wanted, names)));
}

}  // namespace

at::Tensor read_safetensors(const std::filesystem::path& path, const TensorFileRequest& request) {
  const InputFile file = open_input(path);
  const std::string prefix = read_text(file, 0, kSafetensorsPrefix);
  const uint64_t header_size = safetensors_header_size(prefix, file.size, path);
  const uint64_t data = kSafetensorsPrefix + header_size;
  const std::vector<SafetensorsEntry> tensors =
      parse_safetensors_header(read_text(file, kSafetensorsPrefix, header_size), file.size - data, path);
  const SafetensorsEntry& chosen = choose(path, tensors, request.name);
  for (const Stored& stored : kStored) {
    if (chosen.dtype != stored.safetensors) continue;
    const auto element_size = static_cast<int64_t>(c10::elementSize(stored.dtype));
    checked_elements(chosen.sizes, element_size, 1, fmt::format("{}: tensor '{}'", path.string(), chosen.name));
    check_safetensors_bytes(chosen, static_cast<uint64_t>(element_size), path);
    return read_elements(file, data + chosen.begin, chosen.sizes, stored.dtype);
  }
  throw UsageError(fmt::format("{}: tensor '{}' holds {}; a fault acts on F16, BF16, F32 or F64", path.string(),
                               chosen.name, chosen.dtype));
}

std::string safetensors_header(const at::Tensor& tensor, const std::string& name) {
  std::vector<SafetensorsEntry> entry = {{name, stored_as(tensor.scalar_type()).safetensors, tensor.sizes().vec()}};
  return make_safetensors_header(entry, {tensor.nbytes()});
}

}  // namespace faultline::numeric
