#include "race/iteration.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "race/patience.h"

namespace faultline::race {
namespace {

constexpr auto kDeviceLook = std::chrono::milliseconds(10);  // at the latest

c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Where every layer holds the same, older data would be right data: the elements in the opposite order are not.
at::Tensor backwards(const at::Tensor& buffer) { return buffer.view({-1}).flip(0).view(buffer.sizes()); }

// `later` goes on only after what `earlier` has been given so far.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace

Iteration::Iteration(const Config& config, const RankOptions& options, c10::intrusive_ptr<c10d::Backend> data)
    : config_(config),
      options_(options),
      data_(std::move(data)),
      hooks_(options.hooks),
      checks_(std::make_unique<Checks>(config, options.rank, options.ranks, options.device)),
      tensor_options_(at::TensorOptions().dtype(config.dtype).device(options.device)) {
  if (config.simulate_compute) compute_ = std::make_unique<Compute>(config, config.seed, options.device);
  if (!options.device.is_cpu() && !config.same_stream_mode)
    communication_ = c10::impl::VirtualGuardImpl(options.device.type()).getStreamFromGlobalPool(options.device);
  allocate();
}

Iteration::~Iteration() = default;

void Iteration::allocate() {
  const int64_t layers = config_.layers(), ranks = options_.ranks, shard = config_.fsdp_shard_size;
  const auto empty = [&](int64_t elements) { return at::empty({elements}, tensor_options_); };
  if (config_.mode == Mode::kFsdp) {
    shards_.clear();
    for (int64_t l = 0; l < layers; ++l) shards_.push_back(empty(shard));
    for (at::Tensor& buffer : gathered_) buffer = empty(ranks * shard);
    gradients_ = empty(ranks * shard);
    reduced_ = empty(shard);
  } else {
    gradients_ = empty((config_.mode == Mode::kDdp ? layers : 1) * config_.allreduce_tensor_size);
    if (config_.mode == Mode::kDefault) {
      exchange_input_ = empty(config_.alltoall_tensor_size);
      exchange_output_ = empty(config_.alltoall_tensor_size);
    }
  }
  if (config_.h2d_tensor_size > 0) {
    for (int slot = 0; slot < (config_.h2d_prefetch ? 2 : 1); ++slot) {
      const bool pinned = config_.pin_memory && !options_.device.is_cpu();
      host_[slot] =
          at::empty({config_.h2d_tensor_size}, at::TensorOptions().dtype(config_.dtype).pinned_memory(pinned));
      copied_[slot] = empty(config_.h2d_tensor_size);
    }
    host_copied_for_ = std::numeric_limits<int64_t>::min();
  }
  if (compute_ && inputs_.empty())
    for (int64_t l = 0; l < (config_.shared_layer_weights ? 1 : layers); ++l)
      inputs_.push_back(compute_->make_input(l));
}

PatternPlace Iteration::place_of(Stream stream, int64_t layer, int rank) const {
  return {config_.seed, iteration_, layer, rank, stream};
}

double Iteration::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Iteration::visit(Place place, int64_t layer, const at::Tensor& buffer, const StaleContent& stale) {
  for (Hook* hook : hooks_) hook->visit({place, iteration_, layer, options_.rank}, buffer, stale);
}

bool Iteration::skips(Place place, int64_t layer) {
  for (Hook* hook : hooks_)
    if (hook->skips({place, iteration_, layer, options_.rank})) return true;
  return false;
}

Iteration::Pending Iteration::start_collective(Place place, int64_t layer, const char* name, const at::Tensor& output,
                                               const std::function<c10::intrusive_ptr<c10d::Work>()>& call) {
  const bool calls = !skips(place, layer);
  options_.heartbeat->reach(iteration_, layer, name, calls);
  const auto now = std::chrono::steady_clock::now();
  local_seconds_.push_back(std::chrono::duration<double>(now - local_since_).count());
  local_layers_.push_back(layer);
  Pending pending{nullptr, output};
  if (!calls) return pending;
  if (communication_) {
    order(current_stream(options_.device), *communication_);
    const c10::StreamGuard guard(*communication_);
    pending.work = call();
  } else {
    pending.work = call();
  }
  options_.heartbeat->go_on();
  ++collectives_;
  collective_bytes_ += output.numel() * static_cast<int64_t>(output.element_size());
  local_since_ = std::chrono::steady_clock::now();
  const double called = std::chrono::duration<double>(local_since_ - now).count();
  if (called > call_seconds_) call_seconds_ = called, call_layer_ = layer;
  return pending;
}

void Iteration::finish_collective(Pending& pending, int64_t layer, const char* name) {
  options_.heartbeat->wait(iteration_, layer, name);
  const auto before = std::chrono::steady_clock::now();
  if (pending.work) pending.work->wait();
  pending.work.reset();
  options_.heartbeat->go_on();
  local_since_ += std::chrono::steady_clock::now() - before;  // waiting for others is not this rank's own time
}

void Iteration::finish_deferred() {
  for (const auto& digest_now : deferred_) digest_now();
  deferred_.clear();
}

RankRecord Iteration::run(int64_t iteration, StepOptions options) {
  iteration_ = iteration;
  step_ = options;
  local_seconds_.clear();
  local_layers_.clear();
  call_seconds_ = 0, call_layer_ = -1;
  local_since_ = std::chrono::steady_clock::now();
  if (!config_.reuse_buffers) allocate();
  const double start = seconds();
  checks_->begin(iteration, options.verify && config_.patterns);
  for (size_t l = 0; l < inputs_.size(); ++l) compute_->refill_input(inputs_[l], static_cast<int64_t>(l));
  if (config_.h2d_tensor_size > 0) copy_from_host();
  switch (config_.mode) {
    case Mode::kFsdp: run_fsdp(); break;
    case Mode::kDdp: run_ddp(); break;
    case Mode::kDefault: run_default(); break;
  }
  finish_deferred();
  if (config_.optimizer != Optimizer::kNone) step_optimizer(config_.mode == Mode::kFsdp ? reduced_ : gradients_);
  if (config_.h2d_tensor_size > 0 && options.verify && options.digests) checks_->take_host(host_[host_slot()]);
  wait_for_device();
  RankRecord record = checks_->finish();
  device_seconds_ = seconds() - start;
  return record;
}

// The one wait of an iteration, with a limit: a collective whose peer is gone never ends on a GPU.
void Iteration::wait_for_device() {
  if (options_.device.is_cpu()) return;
  c10::Event done(options_.device.type());
  done.record(current_stream(options_.device));
  options_.heartbeat->wait(iteration_, -1, "device");
  Patience patience(config_.timeout_seconds, kDeviceLook);
  while (!done.query()) {
    if (patience.over())
      throw RuntimeFailure(fmt::format("timed out after {} s waiting for the GPU", config_.timeout_seconds));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  options_.heartbeat->go_on();
}

std::vector<Mismatch> Iteration::take_mismatches() { return checks_->take_mismatches(); }

void Iteration::start_host_copy(int64_t iteration, size_t slot) {
  const PatternPlace place{config_.seed, iteration, 0, options_.rank, Stream::kHost};
  fill(host_[slot], element_pattern(numeric::PatternForm::kRaw, config_.dtype, place));
  poison(copied_[slot], poison_word(config_.seed, iteration, -1));
  copied_[slot].copy_(host_[slot], /*non_blocking=*/true);
  host_copied_for_ = iteration;
}

size_t Iteration::host_slot() const { return static_cast<size_t>(config_.h2d_prefetch ? iteration_ & 1 : 0); }

void Iteration::copy_from_host() {
  const size_t slot = host_slot();
  if (host_copied_for_ != iteration_) start_host_copy(iteration_, slot);
  const PatternPlace place{config_.seed, iteration_, 0, options_.rank, Stream::kHost};
  const PatternAt pattern_at = [this](const PatternPlace& p) {
    return element_pattern(numeric::PatternForm::kRaw, config_.dtype, p);
  };
  const at::Tensor& copied = copied_[slot];
  visit(Place::kH2d, -1, copied, [&] {
    PatternPlace before = place;
    --before.iteration;
    at::Tensor old = at::empty_like(copied);
    fill(old, pattern_at(before));
    return old;
  });
  if (step_.verify)
    checks_->compare(copied, {.h2d = true, .operation = "h2d", .place = place, .pattern_at = pattern_at});
  if (step_.verify && step_.digests) checks_->take_copied(copied);
  if (config_.h2d_prefetch) start_host_copy(iteration_ + 1, slot ^ 1);
}

void Iteration::forward_compute(int64_t layer, const at::Tensor& gathered) {
  if (!compute_) return;
  const at::Tensor& input = inputs_[config_.shared_layer_weights ? 0 : static_cast<size_t>(layer)];
  options_.heartbeat->work(iteration_, layer, "compute");
  const at::Tensor other =
      config_.shared_layer_weights ? at::Tensor() : inputs_[static_cast<size_t>((layer + 1) % config_.layers())];
  visit(Place::kComputeInput, layer, input, [&] { return other.defined() ? other : backwards(input); });
  const bool digests = step_.verify && step_.digests;
  const DigestTiming in = config_.digest_of(Key::kComputeInput), out = config_.digest_of(Key::kComputeOutput);
  if (digests && in == DigestTiming::kBefore) checks_->take_key(layer, Key::kComputeInput, input);
  const at::Tensor output = compute_->forward(input, layer, gathered).contiguous();
  if (digests && in == DigestTiming::kAfter) checks_->take_key(layer, Key::kComputeInput, input);
  visit(Place::kComputeOutput, layer, output,
        [&] { return last_output_.defined() && !config_.shared_layer_weights ? last_output_ : backwards(output); });
  if (digests && out == DigestTiming::kBefore) checks_->take_key(layer, Key::kComputeOutput, output);
  if (digests && out == DigestTiming::kAfter)
    deferred_.push_back([this, layer, output] { checks_->take_key(layer, Key::kComputeOutput, output); });
  last_output_ = output;
}

void Iteration::backward_compute(int64_t layer, const at::Tensor& gathered) {
  if (!compute_ || !config_.include_backward_compute) return;
  options_.heartbeat->work(iteration_, layer, "backward");
  const at::Tensor& input = inputs_[config_.shared_layer_weights ? 0 : static_cast<size_t>(layer)];
  const at::Tensor result =
      config_.real_backward ? compute_->backward(input, layer, gathered) : compute_->forward(input, layer, gathered);
  if (step_.verify && step_.digests && config_.digest_of(Key::kComputeOutput) != DigestTiming::kOff)
    checks_->take_gradient(layer, result.contiguous());
}

void Iteration::step_optimizer(const at::Tensor& gradient) {
  if (!parameters_.defined()) {
    parameters_ = at::zeros_like(gradient, at::kFloat);
    shadow_ = at::zeros_like(parameters_);
    first_moment_ = at::zeros_like(parameters_);
    second_moment_ = at::zeros_like(parameters_);
  }
  const at::Tensor g = gradient.to(at::kFloat);
  if (config_.optimizer == Optimizer::kAdamw) {
    const auto [first, second] = config_.optimizer_betas;
    first_moment_.mul_(first).add_(g, 1 - first);
    second_moment_.mul_(second).addcmul_(g, g, 1 - second);
  }
  for (const at::Tensor& p : {parameters_, shadow_}) {  // the same step twice: the second is what the first must be
    if (config_.optimizer == Optimizer::kSgd) {
      p.add_(g, -config_.optimizer_lr);
    } else {
      p.mul_(1 - config_.optimizer_weight_decay * config_.optimizer_lr)
          .addcdiv_(first_moment_, second_moment_.sqrt().add_(config_.optimizer_eps), -config_.optimizer_lr);
    }
  }
  if (step_.verify && step_.digests) checks_->compare_optimizer(parameters_, shadow_);
}

}  // namespace faultline::race
