// Operators on rows whose answers are exact: norms of rows of one magnitude, softmax of rows whose largest value stands
// 2^m times, sums and largest values of integers, a rounded-once multiply-add, SwiGLU where silu is the identity or
// zero, and rows taken from a table. Note [Exact rows]: what a kernel may lose on the way (a reciprocal root of 2 ulp
// of fp32, an epsilon of 10^-5 of the variance) is a hundredth of half an ulp of the 16-bit result, and every right
// result is a number of that type, so it comes out to the bit.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/text.h"
#include "screen/check.h"

namespace faultline::screen {
namespace {

struct Question {
  std::vector<at::Tensor> inputs;  // on the CPU
  at::Tensor answer;
};

at::Tensor made(at::IntArrayRef shape, at::ScalarType type, const std::function<float(int64_t)>& value) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  auto* out = tensor.mutable_data_ptr<float>();
  at::parallel_for(0, tensor.numel(), 1 << 12, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) out[i] = value(i);
  });
  return tensor.to(type);
}

uint64_t word_of(uint64_t seed, int64_t stream, int64_t i) {
  return mix64(mix64(seed, static_cast<uint64_t>(stream)), static_cast<uint64_t>(i));
}

float sign_of(uint64_t word) { return (word >> 63) != 0 ? -1.0F : 1.0F; }

// Signs of a row at random, as many of one as of the other: neighbours two by two.
float balanced_sign(uint64_t seed, int64_t row, int64_t column) {
  const float sign = sign_of(word_of(seed, 10 + row, column / 2));
  return (column & 1) != 0 ? -sign : sign;
}

Question norm(bool layer, int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  const auto gain = [&](int64_t c) {  // 0.5 … 4
    return static_cast<float>(4 + word_of(seed, 1, c) % 29) / 8 * sign_of(word_of(seed, 2, c));
  };
  const auto offset = [&](int64_t c) {  // odd sixteenths: a sum with the gain is never 0
    return layer ? static_cast<float>(static_cast<int>(word_of(seed, 3, c) % 32) * 2 - 31) / 16 : 0.0F;
  };
  const auto sign = [&](int64_t i) {
    return layer ? balanced_sign(seed, i / columns, i % columns) : sign_of(word_of(seed, 4, i));
  };
  Question question;
  question.inputs = {
      made({rows, columns}, type,
           [&](int64_t i) { return std::ldexp(sign(i), 1 + static_cast<int>(word_of(seed, 5, i / columns) % 5)); }),
      made({columns}, type, gain)};
  if (layer) question.inputs.push_back(made({columns}, type, offset));
  question.answer =
      made({rows, columns}, type, [&](int64_t i) { return gain(i % columns) * sign(i) + offset(i % columns); });
  return question;
}

Question softmax(int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  // 2^m of the columns of a row hold 64, all others -64: exp(-128) is 0 in fp32.
  const auto top = [&](int64_t i) {
    const int64_t row = i / columns, column = i % columns;
    const int64_t stride = columns >> (word_of(seed, 1, row) % 5);  // the top stands once, …, 16 times
    return column % stride == static_cast<int64_t>(word_of(seed, 2, row) % static_cast<uint64_t>(stride)) ? stride : 0;
  };
  Question question;
  question.inputs = {made({rows, columns}, type, [&](int64_t i) { return top(i) != 0 ? 64.0F : -64.0F; })};
  question.answer = made({rows, columns}, type, [&](int64_t i) {
    return top(i) != 0 ? static_cast<float>(top(i)) / static_cast<float>(columns) : 0.0F;
  });
  return question;
}

float small_integer(uint64_t word, int64_t most) {
  return static_cast<float>(static_cast<int64_t>(word % static_cast<uint64_t>(2 * most + 1)) - most);
}

Question reduce(bool largest, int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  const int64_t most = type == at::kFloat ? 1000 : 128;
  const auto value = [&](int64_t i) { return small_integer(word_of(seed, 1, i), most); };
  Question question;
  question.inputs = {made({rows, columns}, type, value)};
  question.answer = made({rows}, largest ? type : at::kFloat, [&](int64_t row) {
    double sum = 0, most_so_far = -1e9;
    for (int64_t c = 0; c < columns; ++c) {
      sum += value(row * columns + c);
      most_so_far = std::max(most_so_far, static_cast<double>(value(row * columns + c)));
    }
    return static_cast<float>(largest ? most_so_far : sum);
  });
  return question;
}

Question addcmul(int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  // a + b * c: all three and the result are integers of the type.
  const int64_t most = type == at::kFloat ? 1023 : 11;
  const auto value = [&](int64_t which, int64_t i) { return small_integer(word_of(seed, which, i), most); };
  Question question;
  for (int64_t which = 1; which <= 3; ++which)
    question.inputs.push_back(made({rows, columns}, type, [&](int64_t i) { return value(which, i); }));
  question.answer = made({rows, columns}, type, [&](int64_t i) { return value(1, i) + value(2, i) * value(3, i); });
  return question;
}

Question swiglu(int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  const auto gate = [&](int64_t i) { return (word_of(seed, 1, i) & 3) != 0 ? 128.0F : 0.0F; };
  const auto up = [&](int64_t i) { return small_integer(word_of(seed, 2, i), 120) + 0.5F; };
  Question question;
  question.inputs = {made({rows, columns}, type, gate), made({rows, columns}, type, up)};
  question.answer = made({rows, columns}, type, [&](int64_t i) {
    const float typed = type == at::kBFloat16 ? static_cast<float>(at::BFloat16(up(i))) : up(i);
    return gate(i) * typed;
  });
  return question;
}

Question gather(int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  const int64_t table = 4 * rows;
  const auto value = [&](int64_t i) { return small_integer(word_of(seed, 1, i), 127) / 16; };
  const auto chosen = [&](int64_t row) {
    return static_cast<int64_t>(word_of(seed, 2, row) % static_cast<uint64_t>(table));
  };
  at::Tensor indices = at::empty({rows}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) indices.mutable_data_ptr<int64_t>()[row] = chosen(row);
  Question question;
  question.inputs = {made({table, columns}, type, value), indices};
  question.answer =
      made({rows, columns}, type, [&](int64_t i) { return value(chosen(i / columns) * columns + i % columns); });
  return question;
}

struct Kind {
  Group group;
  const char* operation;
  std::function<Question(int64_t, int64_t, at::ScalarType, uint64_t)> ask;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> call;
};

const std::map<std::string, Kind>& kinds() {
  using Inputs = const std::vector<at::Tensor>&;
  static const std::map<std::string, Kind> all = {
      {"rms_norm",
       {Group::kNorm, "aten::rms_norm", [](auto r, auto c, auto t, auto s) { return norm(false, r, c, t, s); },
        [](Inputs in) { return at::rms_norm(in[0], {in[0].size(1)}, in[1], 1e-6); }}},
      {"layer_norm",
       {Group::kNorm, "aten::layer_norm", [](auto r, auto c, auto t, auto s) { return norm(true, r, c, t, s); },
        [](Inputs in) { return at::layer_norm(in[0], {in[0].size(1)}, in[1], in[2], 1e-5); }}},
      {"softmax", {Group::kNorm, "aten::softmax", softmax, [](Inputs in) { return at::softmax(in[0], -1); }}},
      {"sum",
       {Group::kReduction, "aten::sum", [](auto r, auto c, auto t, auto s) { return reduce(false, r, c, t, s); },
        [](Inputs in) { return at::sum(in[0], {1}, false, at::kFloat); }}},
      {"amax",
       {Group::kReduction, "aten::amax", [](auto r, auto c, auto t, auto s) { return reduce(true, r, c, t, s); },
        [](Inputs in) { return at::amax(in[0], {1}); }}},
      {"addcmul",
       {Group::kReduction, "aten::addcmul", addcmul, [](Inputs in) { return at::addcmul(in[0], in[1], in[2]); }}},
      {"swiglu", {Group::kReduction, "aten::silu", swiglu, [](Inputs in) { return at::mul(at::silu(in[0]), in[1]); }}},
      {"gather",
       {Group::kGather, "aten::index_select", gather, [](Inputs in) { return at::index_select(in[0], 0, in[1]); }}}};
  return all;
}

}  // namespace

std::unique_ptr<Check> rows_check(const std::string& kind, int64_t rows, int64_t columns, at::ScalarType dtype,
                                  const at::Device& device, uint64_t seed) {
  const Kind& what = kinds().at(kind);
  auto check = std::make_unique<Check>();
  check->group = what.group, check->operation = what.operation;
  check->dtype = short_dtype(dtype), check->shape = fmt::format("{}x{}", rows, columns), check->pattern = "exact";
  check->name = fmt::format("{} {} {}", kind, check->dtype, check->shape);
  const Question question = what.ask(rows, columns, dtype, seed);
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : question.inputs) {
    inputs.push_back(input.to(device));
    check->inputs.push_back({fmt::format("input {}", inputs.size()), inputs.back(), host_digest(input)});
    check->bytes += static_cast<int64_t>(input.nbytes());
  }
  check->digests = {host_digest(question.answer)};
  check->bytes += static_cast<int64_t>(question.answer.nbytes());
  check->elements = question.answer.numel();
  check->operations = static_cast<double>(rows * columns);
  check->answer = [&what, rows, columns, dtype, seed](int64_t) { return what.ask(rows, columns, dtype, seed).answer; };
  check->run = [&what, inputs](const Disturb& disturb) {
    at::Tensor result = what.call(inputs).contiguous();
    if (disturb) disturb(result);
    return result;
  };
  return check;
}

}  // namespace faultline::screen
