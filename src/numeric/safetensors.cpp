// .safetensors: the header's size, a JSON object with an entry for each tensor, then their bytes without holes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "numeric/tensor_input.h"
#include "record/json_text.h"

namespace faultline {
namespace {

constexpr uint64_t kMaxHeader = uint64_t{100} << 20;  // as the safetensors library has it

struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;  // from the end of the header
};

StoredTensor read_entry(const std::filesystem::path& path, const std::string& name, const Json& entry,
                        uint64_t data_size) {
  const bool shaped = entry.is_object() && entry.size() == 3 && entry.contains("dtype") && entry["dtype"].is_string() &&
                      entry.contains("shape") && is_sizes(entry["shape"]) && entry.contains("data_offsets") &&
                      is_sizes(entry["data_offsets"]) && entry["data_offsets"].size() == 2;
  if (!shaped) damaged(path, fmt::format("the entry of tensor '{}' is not {{dtype, shape, data_offsets}}", name));
  StoredTensor tensor{name, entry["dtype"], entry["shape"], entry["data_offsets"][0], entry["data_offsets"][1]};
  if (tensor.begin > tensor.end || tensor.end > data_size) {
    damaged(path, fmt::format("tensor '{}' claims bytes {} to {} of {}", name, tensor.begin, tensor.end, data_size));
  }
  return tensor;
}

// The format allows neither holes nor overlaps.
void check_tiling(const std::filesystem::path& path, std::vector<StoredTensor> tensors, uint64_t data_size) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != end) damaged(path, fmt::format("tensor '{}' overlaps another or leaves a hole", tensor.name));
    end = tensor.end;
  }
  if (end != data_size) damaged(path, fmt::format("its tensors end at byte {} of {}", end, data_size));
}

const StoredTensor& choose(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
                           const std::string& wanted) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
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
  const uint64_t header_size = little_endian(read_text(file, 0, 8));
  if (header_size > kMaxHeader) damaged(path, fmt::format("its header would have {} bytes", header_size));
  const Json header = parse_json_text(read_text(file, 8, header_size), path.string());
  if (!header.is_object()) damaged(path, "its header is not a JSON object");
  const uint64_t data = 8 + header_size, data_size = file.size - data;
  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") tensors.push_back(read_entry(path, name, entry, data_size));
  }
  check_tiling(path, tensors, data_size);
  const StoredTensor& chosen = choose(path, tensors, request.name);
  for (const Stored& stored : kStored) {
    if (chosen.dtype != stored.safetensors) continue;
    const auto element_size = static_cast<int64_t>(c10::elementSize(stored.dtype));
    const int64_t elements =
        checked_elements(chosen.sizes, element_size, 1, fmt::format("{}: tensor '{}'", path.string(), chosen.name));
    if (static_cast<uint64_t>(elements * element_size) != chosen.end - chosen.begin) {
      damaged(path, fmt::format("tensor '{}' of shape ({}) has {} bytes", chosen.name, fmt::join(chosen.sizes, ", "),
                                chosen.end - chosen.begin));
    }
    return read_elements(file, data + chosen.begin, chosen.sizes, stored.dtype);
  }
  throw UsageError(fmt::format("{}: tensor '{}' holds {}; a fault acts on F16, BF16, F32 or F64", path.string(),
                               chosen.name, chosen.dtype));
}

std::string safetensors_header(const at::Tensor& tensor, const std::string& name) {
  nlohmann::ordered_json header;
  header[name] = {{"dtype", stored_as(tensor.scalar_type()).safetensors},
                  {"shape", std::vector<int64_t>(tensor.sizes().begin(), tensor.sizes().end())},
                  {"data_offsets", {0, tensor.nbytes()}}};
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string size(8, '\0');
  for (int i = 0; i < 8; ++i) size[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> (8 * i));
  return size + text;
}

}  // namespace faultline
