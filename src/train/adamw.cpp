#include "train/adamw.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace faultline::train {
namespace {

constexpr int64_t kBlock = 1 << 14;  // elements that are summed together, whatever the number of threads
constexpr int kLanes = 8;

struct Factors {
  float decay, lerp, beta2, one_minus_beta2, step_size, correction, epsilon, scale;
};

Factors factors_of(int64_t step, double scale, const AdamWOptions& o) {
  const double first = 1 - std::pow(o.beta1, static_cast<double>(step));
  const double second = 1 - std::pow(o.beta2, static_cast<double>(step));
  return {static_cast<float>(1 - o.learning_rate * o.weight_decay),
          static_cast<float>(1 - o.beta1),
          static_cast<float>(o.beta2),
          static_cast<float>(1 - o.beta2),
          static_cast<float>(o.learning_rate / first),
          static_cast<float>(std::sqrt(second)),
          static_cast<float>(o.epsilon),
          static_cast<float>(scale)};
}

void update_on_cpu(const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                   const at::Tensor& gradients, const Factors& f) {
  float* w = weights.mutable_data_ptr<float>();
  float* m = first.mutable_data_ptr<float>();
  float* v = second.mutable_data_ptr<float>();
  const float* g = gradients.const_data_ptr<float>();
  at::parallel_for(0, weights.numel(), kBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float gradient = g[i] * f.scale;
      m[i] = m[i] + f.lerp * (gradient - m[i]);
      v[i] = v[i] * f.beta2 + f.one_minus_beta2 * gradient * gradient;
      const float denominator = std::sqrt(v[i]) / f.correction + f.epsilon;
      w[i] = w[i] * f.decay - f.step_size * (m[i] / denominator);
    }
  });
}

double squares_of_block(const float* data, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = data[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (; i < count; ++i) sum += static_cast<double>(data[i]) * data[i];
  for (const double lane : lanes) sum += lane;
  return sum;
}

void check_flat(const at::Tensor& tensor, const at::Tensor& like, const char* name) {
  if (tensor.scalar_type() != at::kFloat || !tensor.is_contiguous() || tensor.sizes() != like.sizes() ||
      tensor.device() != like.device())
    throw UsageError(fmt::format("{}: AdamW needs contiguous fp32 tensors of one shape on one device", name));
}

}  // namespace

double gradient_norm(const at::Tensor& gradients) {
  if (!gradients.is_cpu()) return at::linalg_vector_norm(gradients).item<double>();
  const int64_t count = gradients.numel(), blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  const float* data = gradients.const_data_ptr<float>();
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      sums[static_cast<std::size_t>(block)] =
          squares_of_block(data + block * kBlock, std::min(kBlock, count - block * kBlock));
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  return std::sqrt(sum);
}

void adamw_update(const at::Tensor& weights, const at::Tensor& first, const at::Tensor& second,
                  const at::Tensor& gradients, int64_t step, double scale, const AdamWOptions& options) {
  check_flat(weights, weights, "weights");
  check_flat(first, weights, "first moments");
  check_flat(second, weights, "second moments");
  check_flat(gradients, weights, "gradients");
  const at::NoGradGuard no_gradients;
  if (weights.is_cpu()) return update_on_cpu(weights, first, second, gradients, factors_of(step, scale, options));
  const at::Tensor counter = at::full({}, static_cast<double>(step), weights.options());
  std::optional<at::Tensor> divisor;
  if (scale != 1) divisor = at::full({}, 1 / scale, weights.options());
  at::_fused_adamw_({weights}, {gradients}, {first}, {second}, {}, {counter}, options.learning_rate, options.beta1,
                    options.beta2, options.weight_decay, options.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                    divisor);
}

AdamW::AdamW(std::vector<model::CausalLm::Parameter> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  if (parameters_.empty()) throw UsageError("there is no parameter to train");
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> values;
  for (const model::CausalLm::Parameter& parameter : parameters_)
    values.push_back(parameter.tensor->detach().to(at::kFloat).reshape(-1));
  masters_ = at::cat(values);
  first_ = at::zeros_like(masters_), second_ = at::zeros_like(masters_), gradients_ = at::zeros_like(masters_);
  for (const model::CausalLm::Parameter& parameter : parameters_) parameter.tensor->set_requires_grad(true);
}

AdamW::~AdamW() {
  for (const model::CausalLm::Parameter& parameter : parameters_) {
    if (!parameter.tensor->defined()) continue;  // a merged adapter
    parameter.tensor->mutable_grad() = at::Tensor();
    parameter.tensor->set_requires_grad(false);
  }
}

std::vector<at::Tensor> AdamW::pieces(const at::Tensor& flat) const {
  std::vector<at::Tensor> all;
  int64_t first = 0;
  for (const model::CausalLm::Parameter& parameter : parameters_) {
    const int64_t count = parameter.tensor->numel();
    all.push_back(flat.narrow(0, first, count).view(parameter.tensor->sizes()));
    first += count;
  }
  return all;
}

void AdamW::take_gradients() {
  const at::NoGradGuard no_gradients;
  const std::vector<at::Tensor> sums = pieces(gradients_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor->mutable_grad();
    if (!gradient.defined()) continue;
    sums[i].add_(gradient);
    gradient = at::Tensor();
  }
}

void AdamW::drop_gradients() {
  for (const model::CausalLm::Parameter& parameter : parameters_) parameter.tensor->mutable_grad() = at::Tensor();
  gradients_.zero_();
}

std::string AdamW::first_bad_gradient() const {
  const std::vector<at::Tensor> sums = pieces(gradients_);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const int64_t bad = sums[i].numel() - sums[i].isfinite().sum().item<int64_t>();
    if (bad == 0) continue;
    const int64_t layer = site::place_of(parameters_[i].place).layer;
    return fmt::format("{} of {} elements of the gradient of {}{}", bad, sums[i].numel(), parameters_[i].name,
                       layer < 0 ? "" : fmt::format(" (layer {})", layer));
  }
  return "the sum of squares, though every gradient is finite: they are too large for fp32";
}

double AdamW::step() {
  const double norm = gradient_norm(gradients_);
  if (!std::isfinite(norm)) {
    const std::string bad = first_bad_gradient();
    drop_gradients();
    throw NonFiniteError(fmt::format("step {} was not made: not finite: {}", steps_ + 1, bad));
  }
  const double scale = options_.clip_norm > 0 && norm > options_.clip_norm ? options_.clip_norm / (norm + 1e-6) : 1;
  adamw_update(masters_, first_, second_, gradients_, ++steps_, scale, options_);
  gradients_.zero_();
  write_parameters();
  return norm;
}

void AdamW::restart(const AdamWOptions& options) {
  options_ = options;
  steps_ = 0;
  for (const at::Tensor& moments : {first_, second_, gradients_}) moments.zero_();
}

void AdamW::write_parameters() {
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> targets;
  for (const model::CausalLm::Parameter& parameter : parameters_) targets.push_back(*parameter.tensor);
  at::_foreach_copy_(targets, pieces(masters_));
}

}  // namespace faultline::train
