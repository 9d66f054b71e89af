#include "site/scope.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "site/entered.h"
#include "site/forward.h"

namespace faultline::site {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "rollout", "actor_forward", "actor_backward", "recompute", "ref", "eval", "critic", "diagnose"};
constexpr std::size_t kLongTimeLine = 1u << 20;

// From `sequence` on, autograd nodes made by this thread belong to `place` and to a forward of this kind.
struct Change {
  uint64_t sequence;
  PlaceId place;
  ForwardKind kind;
};
struct TimeLine {
  std::mutex mutex;
  std::vector<Change> changes;
};
struct TimeLines {
  std::shared_mutex mutex;
  std::unordered_map<uint64_t, std::unique_ptr<TimeLine>> of_thread;
};
TimeLines& time_lines() {
  static auto* all = new TimeLines;
  return *all;
}

TimeLine& own_time_line() {
  thread_local TimeLine* own = nullptr;
  if (own == nullptr) {
    TimeLines& all = time_lines();
    const std::unique_lock<std::shared_mutex> lock(all.mutex);
    auto& entry = all.of_thread[at::RecordFunction::currentThreadId()];
    if (!entry) entry = std::make_unique<TimeLine>();
    own = entry.get();
  }
  return *own;
}

struct Frame {
  PlaceId place;
  const void* node;  // the autograd node that ran when the scope was pushed
  Phase phase;       // of the forward, or told from the gradient mode then
  ForwardKind kind;
};

Phase phase_of_gradient_mode() { return at::GradMode::is_enabled() ? Phase::kActorForward : Phase::kRollout; }
thread_local std::vector<Frame> frames;
thread_local ForwardKind last_kind = ForwardKind::kWhole;  // of the forward begun last
thread_local int64_t last_decode_step = 0;
std::atomic<ForwardKind> last_trained_kind{ForwardKind::kWhole};  // for nodes that no time line knows

std::atomic<int> process_phase{-1};

void note_change(PlaceId place, ForwardKind kind) {
  if (!at::GradMode::is_enabled()) return;
  TimeLine& line = own_time_line();
  const std::lock_guard<std::mutex> lock(line.mutex);
  const uint64_t sequence = at::sequence_number::peek();
  if (!line.changes.empty() && line.changes.back().sequence == sequence) {
    line.changes.back().place = place, line.changes.back().kind = kind;
    return;
  }
  if (line.changes.size() >= kLongTimeLine)
    line.changes.erase(line.changes.begin(), line.changes.begin() + kLongTimeLine / 2);
  line.changes.push_back({sequence, place, kind});
}

Change change_of_node(const torch::autograd::Node& node) {
  const uint64_t sequence = node.sequence_nr();
  const Change unknown{sequence, kNowhere, last_trained_kind.load(std::memory_order_relaxed)};
  if (sequence == UINT64_MAX) return unknown;  // AccumulateGrad
  TimeLines& all = time_lines();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.of_thread.find(node.thread_id());
  if (found == all.of_thread.end()) return unknown;
  TimeLine& line = *found->second;
  const std::lock_guard<std::mutex> line_lock(line.mutex);
  const auto after = std::upper_bound(line.changes.begin(), line.changes.end(), sequence,
                                      [](uint64_t value, const Change& change) { return value < change.sequence; });
  return after == line.changes.begin() ? unknown : *std::prev(after);
}

ForwardKind kind_inside(const torch::autograd::Node* node) {
  if (node != nullptr && (frames.empty() || frames.back().node != node)) return change_of_node(*node).kind;
  return frames.empty() ? last_kind : frames.back().kind;
}

struct Parameters {
  std::shared_mutex mutex;
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::vector<PlaceId> owners;  // several where weights are tied (embedding and lm_head)
  };
  std::unordered_map<const void*, Entry> entries;  // by the storage's address
};
Parameters& parameters() {
  static auto* all = new Parameters;
  return *all;
}

const void* storage_address(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()->data() : nullptr;
}

}  // namespace

std::string_view phase_name(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

std::optional<Phase> phase_by_name(std::string_view name) {
  const auto found = std::find(kPhaseNames.begin(), kPhaseNames.end(), name);
  if (found == kPhaseNames.end()) return {};
  return static_cast<Phase>(found - kPhaseNames.begin());
}

void set_phase(std::optional<Phase> phase) { process_phase = phase ? static_cast<int>(*phase) : -1; }
std::optional<Phase> get_phase() {
  const int phase = process_phase;
  return phase < 0 ? std::nullopt : std::optional(static_cast<Phase>(phase));
}

void push_scope(PlaceId place) {
  const auto node = torch::autograd::get_current_node();
  frames.push_back({place, node.get(), phase_of_gradient_mode(), kind_inside(node.get())});
  const bool again = frames.size() > 1 && frames[frames.size() - 2].place == place;  // two clients' hooks, one entry
  if (!node && !again) note_entry(place, get_phase().value_or(frames.front().phase), frames.back().kind);
  note_change(place, frames.back().kind);
}

void push_forward(PlaceId root, ForwardKind kind, std::optional<Phase> phase) {
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    last_decode_step = kind == ForwardKind::kDecode && last_kind == kind ? last_decode_step + 1 : 0;
    last_kind = kind;
    if (at::GradMode::is_enabled()) last_trained_kind.store(kind, std::memory_order_relaxed);
  }
  frames.push_back({root, node.get(), phase.value_or(phase_of_gradient_mode()), kind});
  if (!node) note_entry(root, get_phase().value_or(frames.front().phase), kind);
  note_change(root, kind);
}

void pop_scope() {
  if (frames.empty()) return;  // a client's hooks may lose their balance; it must not end the process
  frames.pop_back();
  if (frames.empty())
    note_change(kNowhere, last_kind);
  else
    note_change(frames.back().place, frames.back().kind);
}

void abandon_scope() {
  const bool again = frames.size() > 1 && frames[frames.size() - 2].place == frames.back().place;
  if (!frames.empty() && frames.back().node == nullptr && !again)
    forget_entry(frames.back().place, get_phase().value_or(frames.front().phase), frames.back().kind);
  pop_scope();
}
bool is_inside_scope() { return !frames.empty(); }

ForwardKind forward_kind() { return kind_inside(torch::autograd::get_current_node().get()); }

int64_t decode_step() { return last_decode_step; }

Location locate() {
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    // The outermost scope decides: models switch gradients off for parts of a training forward (rotary tables).
    if (frames.empty()) return {kNowhere, get_phase().value_or(phase_of_gradient_mode())};
    return {frames.back().place, get_phase().value_or(frames.front().phase)};
  }
  // A scope pushed inside the running node is a checkpoint's recomputation; scopes from outside say nothing about it.
  if (!frames.empty() && frames.back().node == node.get()) return {frames.back().place, Phase::kRecompute};
  return {change_of_node(*node).place, Phase::kActorBackward};
}

void register_parameter(const at::Tensor& parameter, PlaceId place) {
  const void* address = storage_address(parameter);
  if (address == nullptr) return;
  Parameters& all = parameters();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  Parameters::Entry& entry =
      all.entries
          .try_emplace(address,
                       Parameters::Entry{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), {}})
          .first->second;
  if (entry.tensor.expired()) entry.owners.clear();  // another tensor lived at this address
  entry.tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr());
  if (std::find(entry.owners.begin(), entry.owners.end(), place) == entry.owners.end()) entry.owners.push_back(place);
}

void forget_parameters() {
  Parameters& all = parameters();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  all.entries.clear();
}

PlaceId place_of_storage(const at::Tensor& tensor, bool looked_up) {
  const void* address = storage_address(tensor);
  if (address == nullptr) return kNowhere;
  Parameters& all = parameters();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.entries.find(address);
  if (found == all.entries.end() || found->second.tensor.expired()) return kNowhere;
  const std::vector<PlaceId>& owners = found->second.owners;
  if (owners.size() == 1) return owners.front();
  // Of tied owners an embedding is the one that is looked up, the others multiply.
  PlaceId only = kNowhere;
  for (const PlaceId owner : owners) {
    if ((place_of(owner).role == "embedding") != looked_up) continue;
    if (only != kNowhere) return kNowhere;
    only = owner;
  }
  return only;
}

at::Tensor parameter_of_storage(const at::Tensor& tensor) {
  const void* address = storage_address(tensor);
  if (address == nullptr) return {};
  Parameters& all = parameters();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.entries.find(address);
  if (found == all.entries.end()) return {};
  auto locked = found->second.tensor.lock();
  if (!locked) return {};
  return at::Tensor(std::move(locked));
}

}  // namespace faultline::site
