#include "model/checkpoint/safetensors_writer.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/safetensors_header.h"

namespace faultline::model {
namespace {

const char* stored_name(at::ScalarType dtype, const std::string& tensor) {
  switch (dtype) {
    case at::kFloat: return "F32";
    case at::kBFloat16: return "BF16";
    case at::kHalf: return "F16";
    case at::kDouble: return "F64";
    case at::kLong: return "I64";
    default: break;
  }
  throw UsageError(fmt::format("tensor '{}' of {} cannot be written; use fp32, bf16, fp16, fp64 or int64", tensor,
                               c10::toString(dtype)));
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToCome>& tensors,
                       const std::function<at::Tensor(std::size_t)>& make, const Metadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  std::vector<uint64_t> bytes;
  std::set<std::string> names;
  for (const TensorToCome& tensor : tensors) {
    if (!names.insert(tensor.name).second || tensor.name == "__metadata__") {
      throw UsageError(fmt::format("{}: the tensor name '{}' is taken", path.string(), tensor.name));
    }
    entries.push_back({tensor.name, stored_name(tensor.dtype, tensor.name), tensor.sizes});
    uint64_t size = c10::elementSize(tensor.dtype);
    for (const int64_t dimension : tensor.sizes) size *= static_cast<uint64_t>(dimension);
    bytes.push_back(size);
  }
  const std::string header = make_safetensors_header(entries, bytes, metadata);
  write_file_atomically(path, [&](const ByteSink& write) {
    write(header);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor tensor = make(i).cpu().contiguous();
      FL_ASSERT(tensor.scalar_type() == tensors[i].dtype && tensor.nbytes() == bytes[i]);
      write({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  });
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors, const Metadata& metadata) {
  std::vector<TensorToCome> list;
  for (const auto& [name, tensor] : tensors) list.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  write_safetensors(path, list, [&](std::size_t i) { return tensors[i].second; }, metadata);
}

}  // namespace faultline::model
