#include "race/thread_backend.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "base/error.h"
#include "race/patience.h"

namespace faultline::race {
namespace {

using Reason = CollectiveFailure::Reason;

struct Call {
  std::string operation;
  int64_t elements = 0;
  at::ScalarType type = at::kFloat;
  at::Tensor input;
  std::shared_ptr<c10::Event> ready;  // device work that produces `input`
  std::shared_ptr<c10::Event> taken;  // device work that reads the peers' inputs
  bool parted = false;

  std::string signature() const { return fmt::format("{} of {} {}", operation, elements, c10::toString(type)); }
};

// The groups' collectives, in the order of calls.
using Sequence = std::pair<int, uint64_t>;

struct Rendezvous {
  std::vector<std::optional<Call>> calls;
  int arrived = 0, finished = 0, left = 0;
};

// Null on a CPU: nothing is asynchronous there.
std::shared_ptr<c10::Event> record_event(const at::Device& device) {
  if (device.is_cpu()) return nullptr;
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void wait_event(const std::shared_ptr<c10::Event>& event, const at::Device& device) {
  if (event) event->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace

struct ThreadWorld::State {
  int ranks;
  std::chrono::milliseconds timeout;
  std::function<void()> first_failure;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t moves = 0;  // arrivals and partings
  std::map<Sequence, Rendezvous> meetings;
  std::map<int, std::string> gone;
  std::optional<CollectiveFailure> failure;

  Rendezvous& meeting(Sequence sequence) {
    Rendezvous& found = meetings[sequence];
    found.calls.resize(static_cast<size_t>(ranks));
    return found;
  }

  void fail(Reason reason, std::vector<int> missing, const std::string& sentence) {
    if (!failure) {
      failure.emplace(reason, std::move(missing), sentence);
      if (first_failure) first_failure();
    }
    changed.notify_all();
    throw CollectiveFailure(*failure);
  }

  // The ranks whose call is not what most others called; nobody where no call has a majority.
  void check_signatures(Sequence sequence, const Rendezvous& meeting) {
    std::map<std::string, std::vector<int>> by_signature;
    for (int rank = 0; rank < ranks; ++rank)
      by_signature[meeting.calls[static_cast<size_t>(rank)]->signature()].push_back(rank);
    if (by_signature.size() == 1) return;
    std::vector<int> others;
    std::string what;
    for (const auto& [signature, members] : by_signature) {
      if (2 * std::ssize(members) <= ranks) others.insert(others.end(), members.begin(), members.end());
      what += fmt::format("{}rank {}: {}", what.empty() ? "" : "; ", fmt::join(members, ","), signature);
    }
    if (std::ssize(others) == ranks) others.clear();
    fail(Reason::kMismatch, others, fmt::format("collective {}: the ranks disagree ({})", sequence.second, what));
  }

  // Waits until `done()`; `late` names the ranks that keep us waiting.
  template <class Done, class Late>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& what, Done done, Late late) {
    Patience patience(std::chrono::duration<double>(timeout).count(), kLook);
    uint64_t seen = moves;
    while (!done()) {
      if (failure) throw CollectiveFailure(*failure);
      for (const int rank : late()) {
        const auto ended = gone.find(rank);
        if (ended != gone.end())
          fail(Reason::kEnded, {rank}, fmt::format("rank {} ended before {}: {}", rank, what, ended->second));
      }
      changed.wait_for(lock, kLook);
      if (std::exchange(seen, moves) != moves) patience.restart();  // somebody came: the rest may be on their way
      if (patience.over() && !done() && !failure) {
        const std::vector<int> missing = late();
        fail(Reason::kTimeout, missing,
             fmt::format("timed out after {} ms waiting for rank {} in {}", timeout.count(), fmt::join(missing, ","),
                         what));
      }
    }
  }

  std::vector<Call> meet(int rank, Sequence sequence, const Call& call) {
    std::unique_lock<std::mutex> lock(mutex);
    if (failure) throw CollectiveFailure(*failure);
    Rendezvous& found = meeting(sequence);
    found.calls[static_cast<size_t>(rank)] = call;
    ++found.arrived, ++moves;
    if (found.arrived == ranks) changed.notify_all();
    wait(
        lock, call.signature(), [&] { return found.arrived == ranks; },
        [&] {
          std::vector<int> missing;
          for (int r = 0; r < ranks; ++r)
            if (!found.calls[static_cast<size_t>(r)]) missing.push_back(r);
          return missing;
        });
    check_signatures(sequence, found);
    std::vector<Call> calls;
    for (const auto& one : found.calls) calls.push_back(*one);
    return calls;
  }

  // All ranks have taken their data; returns the events after which inputs may be overwritten.
  std::vector<std::shared_ptr<c10::Event>> part(int rank, Sequence sequence, std::shared_ptr<c10::Event> taken) {
    std::unique_lock<std::mutex> lock(mutex);
    Rendezvous& found = meeting(sequence);
    found.calls[static_cast<size_t>(rank)]->taken = std::move(taken);
    found.calls[static_cast<size_t>(rank)]->parted = true;
    ++found.finished, ++moves;
    if (found.finished == ranks) changed.notify_all();
    wait(
        lock, fmt::format("collective {}", sequence.second), [&] { return found.finished == ranks; },
        [&] {
          std::vector<int> missing;
          for (int r = 0; r < ranks; ++r)
            if (!found.calls[static_cast<size_t>(r)]->parted) missing.push_back(r);
          return missing;
        });
    std::vector<std::shared_ptr<c10::Event>> events;
    for (const auto& one : found.calls) events.push_back(one->taken);
    if (++found.left == ranks) meetings.erase(sequence);
    return events;
  }
};

namespace {

class ThreadWork : public c10d::Work {
 public:
  ThreadWork(std::shared_ptr<ThreadWorld::State> state, int rank, Sequence sequence, at::Device device)
      : state_(std::move(state)), rank_(rank), sequence_(sequence), device_(device), taken_(record_event(device)) {}

  bool isCompleted() override { return done_; }
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds) override {
    if (done_) return true;
    wait_event(taken_, device_);  // the caller may wait on another stream than the one it called on
    for (const auto& event : state_->part(rank_, sequence_, taken_)) wait_event(event, device_);
    done_ = true;
    return true;
  }

 private:
  std::shared_ptr<ThreadWorld::State> state_;
  int rank_;
  Sequence sequence_;
  at::Device device_;
  std::shared_ptr<c10::Event> taken_;
  bool done_ = false;
};

class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadWorld::State> state, int rank, int group)
      : Backend(rank, state->ranks), state_(std::move(state)), group_(group) {}
  const std::string getBackendName() const override { return "threads"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return run("all_gather", input, [&](const std::vector<at::Tensor>& inputs) {
      for (int64_t rank = 0; rank < getSize(); ++rank)
        output.narrow(0, rank * input.numel(), input.numel()).copy_(inputs[static_cast<size_t>(rank)], true);
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions&) override {
    return run("reduce_scatter", input, [&](const std::vector<at::Tensor>& inputs) {
      const int64_t offset = getRank() * output.numel();
      sum_into(output, inputs, offset);
    });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    FL_ASSERT(tensors.size() == 1);
    const at::Tensor copy = tensors[0].clone();  // peers read it while we write the sum in its place
    return run("all_reduce", copy, [&](const std::vector<at::Tensor>& inputs) { sum_into(tensors[0], inputs, 0); });
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to,
                                               std::vector<int64_t>& from, const c10d::AllToAllOptions&) override {
    FL_ASSERT(to.empty() && from.empty());  // even splits only
    return run("all_to_all", input, [&](const std::vector<at::Tensor>& inputs) {
      const int64_t part = input.numel() / getSize();
      for (int64_t rank = 0; rank < getSize(); ++rank)
        output.narrow(0, rank * part, part)
            .copy_(inputs[static_cast<size_t>(rank)].narrow(0, getRank() * part, part), true);
    });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    return run("barrier", at::zeros({1}), [](const std::vector<at::Tensor>&) {});
  }

 private:
  template <class Pull>
  c10::intrusive_ptr<c10d::Work> run(const char* operation, const at::Tensor& input, Pull pull) {
    const Sequence sequence = {group_, next_++};
    const Call mine{operation, input.numel(), input.scalar_type(), input, record_event(input.device()), nullptr, false};
    const std::vector<Call> calls = state_->meet(getRank(), sequence, mine);
    std::vector<at::Tensor> inputs;
    for (const Call& call : calls) {
      wait_event(call.ready, input.device());
      inputs.push_back(call.input);
    }
    pull(inputs);
    return c10::make_intrusive<ThreadWork>(state_, getRank(), sequence, input.device());
  }

  // Sums in the order of ranks: every rank gets the same bits.
  static void sum_into(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int64_t offset) {
    output.copy_(inputs[0].narrow(0, offset, output.numel()), true);
    for (size_t rank = 1; rank < inputs.size(); ++rank) output.add_(inputs[rank].narrow(0, offset, output.numel()));
  }

  std::shared_ptr<ThreadWorld::State> state_;
  int group_;
  uint64_t next_ = 0;
};

}  // namespace

ThreadWorld::ThreadWorld(int ranks, std::chrono::milliseconds timeout, std::function<void()> first_failure)
    : state_(std::make_shared<State>()) {
  state_->ranks = ranks;
  state_->timeout = timeout;
  state_->first_failure = std::move(first_failure);
}
ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::ranks() const { return state_->ranks; }

c10::intrusive_ptr<c10d::Backend> ThreadWorld::backend(int rank, int group) {
  return c10::make_intrusive<ThreadBackend>(state_, rank, group);
}

void ThreadWorld::leave(int rank, const std::string& why) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->gone[rank] = why;
  state_->changed.notify_all();
}

}  // namespace faultline::race
