#include "screen/drill_outside.h"

#include <ATen/ATen.h>
#include <ATen/ops/copy_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "tap/operator_tap.h"

namespace faultline::screen {
namespace {

constexpr int64_t kPiece = 16;  // words that a copy loses: 64 bytes

// Work that the screen's stream does not know of.
void beside(const at::Device& device, const std::function<void()>& work) {
  const c10::DeviceGuard guard(device);
  const at::NoGradGuard no_gradients;
  const tap::TapsSuspended suspended;
  std::optional<c10::StreamGuard> stream;
  if (device.is_cuda()) stream.emplace(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  work();
  if (stream) stream->current_stream().synchronize();
}

int64_t batches_of(const WorkList& list, int64_t rounds) {
  int64_t batches = 0;
  for (const auto& check : list.checks)
    batches += 1 + rounds * ((kLaunchesInRound - 1) / std::min(kLaunchesInRound, check->most_in_batch) + 1);
  return batches;
}

}  // namespace

Outside::Outside(WorkList& list, const at::Device& device, Kind kind, uint64_t seed, int64_t rounds)
    : device_(device), kind_(kind) {
  std::vector<std::pair<Check*, std::size_t>> choices;
  for (const auto& check : list.checks) {
    const std::size_t parts = kind == Kind::kOperandOnce ? check->inputs.size()
                              : check->memory            ? check->memory->chunks.size()
                                                         : 0;
    for (std::size_t part = 0; part < parts; ++part)  // a broken index would read anywhere
      if (kind != Kind::kOperandOnce || check->inputs[part].tensor.is_floating_point())
        choices.emplace_back(check.get(), part);
  }
  FL_ASSERT(!choices.empty());
  std::tie(check_, part_) = choices[mix64(seed, 1) % choices.size()];
  choose(seed);
  boundary_ = static_cast<int64_t>(mix64(seed, 2) % static_cast<uint64_t>(batches_of(list, rounds)));
  if (kind == Kind::kMemoryHeld) thread_ = std::thread([this] { beside(device_, [this] { hold(); }); });
}

void Outside::choose(uint64_t seed) {
  const at::Tensor words =
      kind_ == Kind::kOperandOnce ? check_->inputs[part_].tensor : check_->memory->chunks[part_].words;
  const at::Tensor bits = bits_of(words).view(-1);
  element_ = static_cast<int64_t>(mix64(seed, 3) % static_cast<uint64_t>(bits.numel()));
  word_ = bits.narrow(0, element_, 1);
  mask_ =
      one_bit(words.element_size(), static_cast<int>(mix64(seed, 4) % static_cast<uint64_t>(8 * words.element_size())));
  held_at_ = (mix64(seed, 5) & 1) != 0;
}

Outside::~Outside() {
  end_ = true;
  if (thread_.joinable()) thread_.join();
  if (struck_ && kind_ == Kind::kOperandOnce) flip();
}

void Outside::flip() const {
  std::thread([this] { beside(device_, [this] { word_.bitwise_xor_(mask_); }); }).join();
}

// As a cell that is stuck: whatever is written there, the bit is soon as it was.
void Outside::hold() {
  while (!end_) {
    if (device_.is_cpu()) {  // in one step: the word's other bits are the screen's
      std::atomic_ref<int32_t> word(*word_.mutable_data_ptr<int32_t>());
      if (held_at_)
        word.fetch_or(static_cast<int32_t>(mask_));
      else
        word.fetch_and(static_cast<int32_t>(~mask_));
    } else {
      if (held_at_)
        word_.bitwise_or_(mask_);
      else
        word_.bitwise_and_(~mask_);
      (void)word_.cpu();  // done
    }
    ++held_;
    std::this_thread::yield();
  }
}

void Outside::between() {
  if (kind_ == Kind::kMemoryHeld) {  // what was begun after this moment is done: two more
    const int64_t seen = held_;
    while (held_ < seen + 2) std::this_thread::yield();
    return;
  }
  if (boundaries_++ != boundary_) return;
  struck_ = true;
  flip();
}

Trial Outside::judged(const WorkerResult& result) const {
  Trial trial;
  trial.found = trial.placed = !result.failures.empty();
  FL_ASSERT(kind_ == Kind::kMemoryHeld || struck_);
  for (const Failure& failure : result.failures) {
    const bool here =
        failure.check == check_->name && failure.suspect == Suspect::kMemory &&
        (kind_ == Kind::kOperandOnce ? failure.broken_inputs == std::vector<std::string>{check_->inputs[part_].name}
                                     : failure.element == element_ && failure.wrong_elements == 1 &&
                                           failure.stage == fmt::format("chunk {}", part_) &&
                                           (failure.changed_bits & static_cast<uint32_t>(mask_)) != 0);
    if (!here) trial.placed = false, trial.note = fmt::format("{}: {}", failure.check, failure.sentence);
  }
  if (kind_ == Kind::kMemoryOnce) trial.rate = result.wrong() == 1;
  return trial;
}

namespace {

SpoiltCopies* spoilt_now = nullptr;

at::Tensor& copy_in_other_hands(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  return spoilt_now->copy(to, from, non_blocking);
}

}  // namespace

SpoiltCopies::SpoiltCopies(const WorkList& list, const at::Device& device, bool lose, double rate, uint64_t seed)
    : list_(list), lose_(lose), rate_(rate), seed_(seed) {
  for (const auto& check : list.checks) {
    if (!check->stages) continue;
    for (const Stage& stage : check->stages())
      buffers_[stage.tensor.const_data_ptr()] = {check->name, stage.name, stage.name.starts_with("copy 1")};
  }
  FL_ASSERT(!buffers_.empty() && spoilt_now == nullptr);
  spoilt_now = this;
  std::vector<c10::DispatchKey> keys = {c10::DispatchKey::CPU};
  if (device.is_cuda()) keys.push_back(c10::DispatchKey::CUDA);
  for (const c10::DispatchKey key : keys) {
    kernels_.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
    kernels_.back()->impl("copy_", copy_in_other_hands);
  }
}

SpoiltCopies::~SpoiltCopies() {
  kernels_.clear();
  spoilt_now = nullptr;
}

at::Tensor& SpoiltCopies::copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const auto buffer = inside_ ? buffers_.end() : buffers_.find(to.const_data_ptr());
  if (buffer == buffers_.end()) return at::native::copy_(to, from, non_blocking);
  if (buffer->second.first) fresh_ = true;
  const uint64_t word = mix64(seed_, ++copies_);
  if (static_cast<double>(word >> 11) * 0x1p-53 >= rate_) return at::native::copy_(to, from, non_blocking);
  inside_ = true;
  const int64_t count = lose_ ? kPiece : 1;
  const auto element =
      static_cast<int64_t>(mix64(seed_ ^ 0x706C616365, copies_) % static_cast<uint64_t>(to.numel() - count));
  const at::Tensor before = lose_ ? to.narrow(0, element, count).clone() : at::Tensor();
  at::native::copy_(to, from, non_blocking);
  if (to.device() != from.device()) (void)from.narrow(0, 0, 1).cpu();  // it has arrived
  const at::Tensor piece = to.narrow(0, element, count);
  if (lose_)
    piece.copy_(before);
  else
    bits_of(piece).bitwise_xor_(1 << 20);
  inside_ = false;
  if (std::exchange(fresh_, false) || launches_.empty() || launches_.back().check != buffer->second.check)
    launches_.push_back({buffer->second.check, buffer->second.stage, element, count});
  else
    launches_.back().first_element = std::min(launches_.back().first_element, element),
    launches_.back().elements += count;
  return to;
}

Trial SpoiltCopies::judged(const WorkerResult& result) const {
  Trial trial;
  trial.found = trial.placed = !result.failures.empty();
  for (const Failure& failure : result.failures) {
    const bool here = failure.suspect == Suspect::kTransfer &&
                      std::any_of(launches_.begin(), launches_.end(), [&](const Launch& one) {
                        return one.check == failure.check && one.stage == failure.stage &&
                               one.first_element == failure.element && failure.wrong_elements <= one.elements;
                      });
    if (!here)
      trial.placed = false, trial.note = fmt::format("{}: {}, element {}, {} wrong", failure.check, failure.stage,
                                                     failure.element, failure.wrong_elements);
  }
  int64_t wrong = 0, tested = 0, stages = 1;
  for (std::size_t i = 0; i < list_.checks.size(); ++i) {
    const Check& check = *list_.checks[i];
    if (!check.stages) continue;
    stages = static_cast<int64_t>(check.stages().size());
    wrong += result.spent[i].wrong, tested += result.spent[i].launches;
  }
  trial.rate = agrees(1 - std::pow(1 - rate_, static_cast<double>(stages)), wrong, tested);
  if (trial.rate == false) trial.note = fmt::format("{} of {} launches were wrong, rate {}", wrong, tested, rate_);
  return trial;
}

}  // namespace faultline::screen
