// NumPy's .npy: a header that is a Python dictionary literal of exactly three keys, then the elements.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/json.h"
#include "numeric/tensor_input.h"

namespace faultline::numeric {
namespace {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

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

}  // namespace

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

}  // namespace faultline::numeric
