// What the readers of .npy and .safetensors share: a file whose every length is checked before it is used, the element
// types that both know, and the entry points of the two formats. For tensor_file.cpp and the two readers alone.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "numeric/tensor_file.h"

namespace faultline::numeric {

struct Stored {
  const char* npy;
  const char* safetensors;
  at::ScalarType dtype;
};
inline constexpr std::array<Stored, 4> kStored = {{{"<f2", "F16", at::kHalf},
                                                   {"<V2", "BF16", at::kBFloat16},
                                                   {"<f4", "F32", at::kFloat},
                                                   {"<f8", "F64", at::kDouble}}};

const Stored& stored_as(at::ScalarType dtype);  // UsageError where no file can hold it

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& complaint);

struct InputFile {
  std::filesystem::path path;
  FileDescriptor descriptor;
  uint64_t size = 0;
};

InputFile open_input(const std::filesystem::path& path);
std::string read_text(const InputFile& file, uint64_t offset, uint64_t count);  // checked against the file's size
uint64_t little_endian(std::string_view bytes);
at::Tensor read_elements(const InputFile& file, uint64_t offset, const std::vector<int64_t>& sizes,
                         at::ScalarType dtype);

at::Tensor read_npy(const std::filesystem::path& path, const TensorFileRequest& request);
std::string npy_header(const at::Tensor& tensor);
at::Tensor read_safetensors(const std::filesystem::path& path, const TensorFileRequest& request);
std::string safetensors_header(const at::Tensor& tensor, const std::string& name);

}  // namespace faultline::numeric
