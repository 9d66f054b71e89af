#include "numeric/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/files/file.h"
#include "numeric/tensor_input.h"

namespace faultline::numeric {

int64_t checked_elements(at::IntArrayRef sizes, int64_t element_size, int64_t copies, const std::string& what) {
  int64_t elements = 1, bytes = 0;
  bool empty = false, overflow = false;
  for (const int64_t size : sizes) {
    empty = empty || size == 0;
    overflow = overflow || __builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements);
  }
  overflow = overflow || __builtin_mul_overflow(elements, element_size * copies, &bytes);
  if (overflow)
    throw UsageError(fmt::format("{}: the shape {} has more elements than 64 bits count", what, fmt::join(sizes, "x")));
  const auto memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  if (!empty && bytes > memory) {
    throw UsageError(fmt::format("{}: the shape {} needs {} bytes; this machine has {}", what, fmt::join(sizes, "x"),
                                 bytes, memory));
  }
  return empty ? 0 : elements;
}

void check_tensor_suffix(const std::filesystem::path& path) {
  if (path.extension() == ".npy" || path.extension() == ".safetensors") return;
  throw UsageError(fmt::format("{}: a tensor file ends in .npy or .safetensors", path.string()));
}

at::Tensor read_tensor_file(const std::filesystem::path& path, const TensorFileRequest& request) {
  check_tensor_suffix(path);
  return path.extension() == ".npy" ? read_npy(path, request) : read_safetensors(path, request);
}

void write_tensor_file(const std::filesystem::path& path, const at::Tensor& tensor, const std::string& name) {
  check_tensor_suffix(path);
  const at::Tensor data = tensor.cpu().contiguous();
  std::string bytes = path.extension() == ".npy" ? npy_header(data) : safetensors_header(data, name);
  bytes.append(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
  write_file_atomically(path, bytes);
}

}  // namespace faultline::numeric
