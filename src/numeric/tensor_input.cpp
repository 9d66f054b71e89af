#include "numeric/tensor_input.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace faultline::numeric {
namespace {

void read_at(const InputFile& file, uint64_t offset, void* target, uint64_t count) {
  auto* bytes = static_cast<char*>(target);
  while (count > 0) {
    const ssize_t got = ::pread(file.descriptor.get(), bytes, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(file.path, "read", errno);
    if (got == 0) damaged(file.path, "it ended while it was read");
    bytes += got, offset += static_cast<uint64_t>(got), count -= static_cast<uint64_t>(got);
  }
}

}  // namespace

const Stored& stored_as(at::ScalarType dtype) {
  for (const Stored& stored : kStored) {
    if (stored.dtype == dtype) return stored;
  }
  throw UsageError(fmt::format("a tensor of {} cannot be written; use fp32, bf16, fp16 or fp64", c10::toString(dtype)));
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& complaint) {
  throw RuntimeFailure(fmt::format("{}: damaged or not a {} file: {}", path.string(),
                                   path.extension() == ".npy" ? "NumPy" : "safetensors", complaint));
}

InputFile open_input(const std::filesystem::path& path) {
  InputFile file{path, open_file(path, O_RDONLY | O_NONBLOCK), 0};  // a named pipe must not hang us
  struct stat status = {};
  if (::fstat(file.descriptor.get(), &status) != 0) fail_with_errno(path, "inspect", errno);
  if (!S_ISREG(status.st_mode)) throw UsageError(fmt::format("{} is not a regular file", path.string()));
  file.size = static_cast<uint64_t>(status.st_size);
  return file;
}

std::string read_text(const InputFile& file, uint64_t offset, uint64_t count) {
  if (offset > file.size || count > file.size - offset) {
    damaged(file.path, fmt::format("it has {} bytes where at least {} are announced", file.size, offset + count));
  }
  std::string text(count, '\0');
  read_at(file, offset, text.data(), count);
  return text;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = (value << 8) | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

at::Tensor read_elements(const InputFile& file, uint64_t offset, const std::vector<int64_t>& sizes,
                         at::ScalarType dtype) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  read_at(file, offset, tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace faultline::numeric
