// The questions of an interview, module by module: what goes in, and what a healthy machine has to answer.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/interview.h"
#include "diagnose/methods.h"
#include "diagnose/observation.h"
#include "diagnose/range.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kAskedRows = 12, kAttentionRows = 4;

// Signs at random; half of the rows level, the others over eight powers of two.
at::Tensor patterns(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor sign = at::randint(0, 2, sizes, random, options) * 2 - 1;
  const at::Tensor uniform = at::rand(sizes, random, options);
  at::Tensor is_level = at::arange(sizes[0], options).lt(static_cast<double>(sizes[0]) / 2);
  while (is_level.dim() < std::ssize(sizes)) is_level = is_level.unsqueeze(-1);
  return (sign * at::where(is_level, 1 + uniform / 64, at::exp2(-8 * uniform))).to(dtype);
}

// (rows, T, hidden) that holds all rows of x, some twice.
at::Tensor as_batch(const at::Tensor& x, int64_t length) {
  const int64_t batch = (x.size(0) + length - 1) / length;
  const at::Tensor index = at::arange(batch * length, at::kLong).remainder(x.size(0));
  return x.index_select(0, index).reshape({batch, length, x.size(1)});
}

}  // namespace

void Interview::add_whole_layer(const std::string& layer, const at::Tensor& x) {
  const site::PlaceId place = site::place_id(layer);
  const int64_t length = x.size(1);
  const auto rows = [&](const at::Tensor& given) {
    const int64_t count = given.numel() / given.size(-1);
    layer_rows_ += static_cast<double>(count);
  };
  const PlanPause pause;
  if (const at::Tensor wanted = infinity_rows(x.size(2), dtype_, options_.seed); wanted.defined()) {
    const at::Tensor batch = as_batch(wanted, length).to(x.device());
    rows(batch), rows(batch);
    add({Probe::Call::kAgain, layer, batch, 2, {}}, [=, this](const Answers& answers) {
      observe({"infinity", "layer_output", place, flat(batch), flat(answers[0][0]), {}, {}, {flat(answers[1][0])}});
    });
  }
  rows(x), rows(x);
  add({Probe::Call::kAgain, layer, x, 2, {}}, [=, this](const Answers& answers) {
    observe({kRepetition, "layer_output", place, flat(answers[0][0]), flat(answers[1][0])});
  });
  if (biases_) return;
  const at::Tensor nothing = at::zeros_like(x);
  rows(nothing);
  add({Probe::Call::kAgain, layer, nothing, 1, {}}, [=, this](const Answers& answers) {
    observe({"zero", "layer_output", place, flat(nothing), flat(answers[0][0])});
  });
  if (dtype_ == at::kHalf) return;
  const AskedRows asked = asked_rows(flat(x), options_.seed);
  accusations_.note_untested(place, asked.replaced.item<int64_t>() * x.size(2));
  const at::Tensor small = asked.rows.reshape(x.sizes()) * kTiny;
  rows(small);
  add({Probe::Call::kAgain, layer, small, 1, {}}, [=, this](const Answers& answers) {
    const at::Tensor y = flat(answers[0][0]);
    const PlanPause paused;
    observe(
        {"tiny", "layer_output", place, at::zeros_like(y, at::kFloat), y, at::full_like(y, kTinyBound, at::kFloat)});
    const at::Tensor lost = y.eq(0).logical_and(flat(small).ne(0));
    const bool swallows = lost.to(at::kDouble).mean().item<double>() > 0.02 ||
                          (y.size(0) >= 8 && lost.sum(0).max().item<int64_t>() > y.size(0) / 2);
    if (swallows) observe({"tiny, not zero", "layer_output", place, at::where(lost, flat(small), y), y});
  });
}

void Interview::add_linear(const std::string& path, const ModuleFacts& facts) {
  const PlanPause pause;
  if (!answers_.contains(path)) {
    model::Linear linear;
    linear.place = site::place_id(path), linear.weight = facts.weight, linear.bias = facts.bias;
    const bool levels = site::layer_of_path(path) >= 0;  // a head is wide
    answers_[path] = known_answers(linear, mix64(options_.seed, hash64(path)), at::kCPU, levels);
  }
  const KnownAnswers& known = answers_.at(path);
  const int64_t times = pass_ == 0 ? 2 : 1;
  operator_products_ += static_cast<double>(times * known.input.size(0)) * static_cast<double>(facts.weight.numel());
  add({Probe::Call::kPlain, path, known.input, times, {}}, [=, this](const Answers& answers) {
    const KnownAnswers& right = answers_.at(path);
    Observation observation{"known answers",     "linear",       site::place_id(path), right.expected,
                            flat(answers[0][0]), right.tolerance};
    for (std::size_t i = 1; i < answers.size(); ++i) observation.repetitions.push_back(flat(answers[i][0]));
    observe(observation);
  });
}

void Interview::add_norm(const std::string& path, const ModuleFacts& facts) {
  const PlanPause pause;
  const at::Tensor weight = facts.weight.to(at::kDouble);
  const at::Tensor level = 1 / weight.abs().clamp_min(1e-2 * weight.abs().mean() + 1e-30);
  at::Tensor x = patterns({kAskedRows, weight.numel()}, mix64(options_.seed, 7), dtype_).to(weight.device());
  const int64_t half = x.size(0) / 2;
  x = at::cat(
      {(x.narrow(0, 0, half).to(at::kDouble) * level / level.mean()).to(dtype_), x.narrow(0, half, x.size(0) - half)});
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor normed = wide / (wide.square().mean(-1, true) + facts.epsilon).sqrt(), exact = normed * weight;
  // Hugging Face rounds before it multiplies by the weight, and again after.
  const at::Tensor tolerance =
      (half_ulp(exact, dtype_) + half_ulp(normed, dtype_) * weight.abs()) * 1.01 + exact.abs() * kFunctionError;
  add({Probe::Call::kPlain, path, x, 2, {}}, [=, this](const Answers& answers) {
    observe({"known answers",
             "norm",
             site::place_id(path),
             exact,
             flat(answers[0][0]),
             tolerance,
             {},
             {flat(answers[1][0])}});
  });
}

void Interview::add_activation(const std::string& path) {
  const PlanPause pause;
  at::Tensor x = patterns({kAskedRows, 256}, mix64(options_.seed, 8), dtype_);
  for (int64_t row = 0; row < x.size(0) / 2; ++row) x[row].mul_(row < 3 ? kLarge : 6);
  x[0].abs_();
  x = x.to(inputs_.at(0).device());
  const at::Tensor wide = x.to(at::kDouble), exact = wide / (1 + (-wide).exp());
  const at::Tensor tolerance = half_ulp(exact, dtype_) + exact.abs() * kFunctionError + 1e-30;
  add({Probe::Call::kPlain, path, x, 2, {}}, [=, this](const Answers& answers) {
    observe({"known answers",
             "activation",
             site::place_id(path),
             exact,
             flat(answers[0][0]),
             tolerance,
             {},
             {flat(answers[1][0])}});
  });
}

// The first token of a row sees itself alone: what comes out of the attention there is its value, to the bit; and the
// module hands on what its last part gave.
void Interview::add_attention(const std::string& path, const at::Tensor& x) {
  const std::string value = path + ".v_proj", output = path + ".o_proj";
  if (find(value) == nullptr || find(output) == nullptr || options_.head_size == 0) return;
  at::Tensor given;
  {
    const PlanPause pause;
    given = patterns({kAttentionRows, x.size(1), x.size(2)}, mix64(options_.seed, 9), dtype_).to(x.device());
  }
  for (const auto& [child, facts] : modules_)
    if (child.starts_with(path + ".") && facts.type == "linear")
      operator_products_ += static_cast<double>(given.size(0) * given.size(1) * facts.weight.numel());
  Probe probe{Probe::Call::kAgain, path, given, 1, {{value, true}, {output, false}, {output, true}}};
  add(std::move(probe), [=, this](const Answers& answers) {
    const PlanPause pause;
    const site::PlaceId place = site::place_id(path);
    const at::Tensor values = answers[0][1].select(1, 0),
                     mixed = answers[0][2].select(1, 0);  // (B, kv * D), (B, H * D)
    const int64_t size = options_.head_size, group = mixed.size(1) / std::max<int64_t>(1, values.size(1));
    const at::Tensor wanted =
        values.reshape({values.size(0), -1, size}).repeat_interleave(group, 1).reshape(mixed.sizes());
    // On CUDA tensor cores take fp32 apart into shorter numbers.
    const bool apart = wanted.is_cuda() && wanted.scalar_type() == at::kFloat;
    observe(
        {"one key", "attention", place, wanted, mixed, apart ? wanted.to(at::kDouble).abs() * 0x1p-20 : at::Tensor()});
    observe({"the sum of its parts", "module", place, flat(answers[0][3]), flat(answers[0][0])});
  });
}

void Interview::add_mlp(const std::string& path) {
  const std::string up = path + ".up_proj", down = path + ".down_proj", act = path + ".act_fn";
  if (find(up) == nullptr || find(down) == nullptr || find(act) == nullptr) return;
  const PlanPause pause;
  const int64_t hidden = find(up)->weight.defined() ? find(up)->weight.size(1) : 0;
  if (hidden == 0) return;
  const at::Tensor x = patterns({kAskedRows, hidden}, mix64(options_.seed, 10), dtype_).to(find(up)->weight.device());
  for (const auto& [child, facts] : modules_)
    if (child.starts_with(path + ".") && facts.type == "linear")
      operator_products_ += static_cast<double>(x.size(0) * facts.weight.numel());
  Probe probe{Probe::Call::kPlain, path, x, 1, {{act, true}, {up, true}, {down, false}, {down, true}}};
  add(std::move(probe), [=, this](const Answers& answers) {
    const PlanPause paused;
    const at::Tensor exact = flat(answers[0][1]).to(at::kDouble) * flat(answers[0][2]).to(at::kDouble);
    observe({"a product", "module", site::place_id(path), exact, flat(answers[0][3]), half_ulp(exact, dtype_) * 1.001});
    observe({"the sum of its parts", "module", site::place_id(path), flat(answers[0][4]), flat(answers[0][0])});
  });
}

}  // namespace faultline::diagnose
