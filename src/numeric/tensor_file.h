// Tensors in files other programs write: NumPy's .npy and .safetensors. Both are read strictly: every length and offset
// is checked against the size of the file before memory is asked for, because these files come from anywhere. Only the
// bytes of the tensor that is wanted are read. A file that is damaged is a RuntimeFailure, a tensor that no fault can
// act on (integers, big-endian) a UsageError.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>

namespace faultline::numeric {

struct TensorFileRequest {
  std::string name;                      // .safetensors: which tensor; empty: the only one
  std::optional<at::ScalarType> opaque;  // .npy: what two bytes without a type ('V2') are
};

at::Tensor read_tensor_file(const std::filesystem::path& path, const TensorFileRequest& request);  // contiguous, CPU

// By suffix, atomically. `name` is the tensor's in a .safetensors file. bf16 is written to .npy as '<V2'.
void write_tensor_file(const std::filesystem::path& path, const at::Tensor& tensor, const std::string& name);

void check_tensor_suffix(const std::filesystem::path& path);  // UsageError unless .npy or .safetensors

// The product, or a UsageError that names `what` where it overflows or where the bytes, `copies` times, do not fit into
// this machine's memory.
int64_t checked_elements(at::IntArrayRef sizes, int64_t element_size, int64_t copies, const std::string& what);

}  // namespace faultline::numeric
