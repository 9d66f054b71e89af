#include "numeric/tensor_file.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"
#include "base/text.h"
#include "record/atomic_file.h"
#include "record/file_descriptor.h"
#include "record/json_text.h"

namespace faultline {
namespace {

constexpr uint64_t kMaxHeader = uint64_t{100} << 20;  // as the safetensors library has it
constexpr std::size_t kMaxDimensions = 32;

struct Stored {
  const char* npy;
  const char* safetensors;
  at::ScalarType dtype;
};
constexpr std::array<Stored, 4> kStored = {{{"<f2", "F16", at::kHalf},
                                            {"<V2", "BF16", at::kBFloat16},
                                            {"<f4", "F32", at::kFloat},
                                            {"<f8", "F64", at::kDouble}}};

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

struct InputFile {
  std::filesystem::path path;
  FileDescriptor descriptor;
  uint64_t size = 0;
};

InputFile open_input(const std::filesystem::path& path) {
  InputFile file{path, open_file(path, O_RDONLY | O_NONBLOCK), 0};  // a named pipe must not hang us
  struct stat status = {};
  if (::fstat(file.descriptor.get(), &status) != 0) fail_with_errno(path, "inspect", errno);
  if (!S_ISREG(status.st_mode)) throw UsageError(fmt::format("{} is not a regular file", path.string()));
  file.size = static_cast<uint64_t>(status.st_size);
  return file;
}

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

// .npy: its header is a Python dictionary literal of exactly three keys
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

bool is_sizes(const Json& value) {
  return value.is_array() && value.size() <= kMaxDimensions &&
         std::all_of(value.begin(), value.end(), [](const Json& size) {
           return size.is_number_unsigned() && size.get<uint64_t>() <= uint64_t{0x7FFFFFFFFFFFFFFF};
         });
}

// The literal differs from JSON in its quotes, parentheses, capitals and commas before a closing bracket.
std::string python_to_json(std::string_view python) {
  std::string json;
  for (const char c : python) {
    if (c == ' ' || c == '\n') continue;
    if ((c == ')' || c == '}') && json.ends_with(',')) json.pop_back();
    json += c == '\'' ? '"' : c == '(' ? '[' : c == ')' ? ']' : c == 'T' ? 't' : c == 'F' ? 'f' : c;
  }
  return json;
}

NpyHeader parse_npy_header(const std::filesystem::path& path, std::string_view text) {
  const Json header = parse_json_text(python_to_json(text), path.string() + ": the header");
  const bool valid = header.is_object() && header.size() == 3 && header.contains("descr") &&
                     header["descr"].is_string() && header.contains("fortran_order") &&
                     header["fortran_order"].is_boolean() && header.contains("shape") && is_sizes(header["shape"]);
  if (!valid) damaged(path, "its header is not {descr, fortran_order, shape}");
  return {header["descr"], header["fortran_order"], header["shape"]};
}

at::ScalarType npy_dtype(const std::filesystem::path& path, const std::string& descr,
                         const TensorFileRequest& request) {
  if (descr == "<V2" || descr == "|V2") {
    if (request.opaque == at::kBFloat16) return at::kBFloat16;
    throw UsageError(fmt::format("{} holds two bytes without a type ('{}'); say --dtype bf16 if they are bf16",
                                 path.string(), descr));
  }
  for (const Stored& stored : kStored) {
    if (descr == stored.npy) return stored.dtype;
  }
  throw UsageError(fmt::format("{} holds '{}'; a fault acts on little-endian '<f2', '<f4', '<f8' or bf16 as '<V2'",
                               path.string(), descr));
}

at::Tensor read_npy(const std::filesystem::path& path, const TensorFileRequest& request) {
  if (!request.name.empty()) throw UsageError("a .npy file holds one tensor without a name; leave --tensor out");
  const InputFile file = open_input(path);
  const std::string start = read_text(file, 0, 8);
  if (!start.starts_with("\x93NUMPY")) damaged(path, "it does not begin with \\x93NUMPY");
  if (start[6] < 1 || start[6] > 3) damaged(path, fmt::format("version {} is unknown", static_cast<int>(start[6])));
  const uint64_t width = start[6] == 1 ? 2 : 4, header_size = little_endian(read_text(file, 8, width));
  const NpyHeader header = parse_npy_header(path, read_text(file, 8 + width, header_size));
  const at::ScalarType dtype = npy_dtype(path, header.descr, request);
  const auto element_size = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t elements = checked_elements(header.shape, element_size, 1, path.string());
  const uint64_t begin = 8 + width + header_size, bytes = static_cast<uint64_t>(elements * element_size);
  if (file.size - begin != bytes) {
    damaged(path, fmt::format("its shape ({}) needs {} bytes of data; there are {}", fmt::join(header.shape, ", "),
                              bytes, file.size - begin));
  }
  if (!header.fortran_order) return read_elements(file, begin, header.shape, dtype);
  std::vector<int64_t> reversed(header.shape.rbegin(), header.shape.rend()), order(reversed.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  return read_elements(file, begin, reversed, dtype).permute(order).contiguous();
}

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

std::string npy_header(const at::Tensor& tensor) {
  std::string shape;
  for (const int64_t size : tensor.sizes()) shape += fmt::format("{}, ", size);
  if (tensor.dim() > 1) shape.resize(shape.size() - 2);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                 stored_as(tensor.scalar_type()).npy, shape);
  text.append(63 - (10 + text.size()) % 64, ' ').push_back('\n');
  const auto size = static_cast<uint16_t>(text.size());
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(size & 0xFF) + static_cast<char>(size >> 8) + text;
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

}  // namespace

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

}  // namespace faultline
