#include "race/collective_tap.h"

#include <ATen/ATen.h>

#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_map>

namespace faultline::race {
namespace {

using c10d::Backend;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
template <class T>
using Ref = c10::intrusive_ptr<T>;

Tensors flat(const Lists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Runs `after` once the inner work is done and before anybody who waits for this one goes on: as a continuation of its
// future where it has one (DDP chains on it), else in wait(), since some of Gloo's works have none.
class TappedWork : public Work {
 public:
  TappedWork(Ref<Work> inner, std::function<void()> after)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), after_(std::move(after)) {
    Ref<c10::ivalue::Future> future;
    try {
      future = inner_->getFuture();
    } catch (const c10::Error&) {
      return;
    }
    future_ = future->then(
        [after = std::move(after_)](c10::ivalue::Future& done) {
          auto value = done.value();
          after();
          return value;
        },
        future->elementType());
  }

  bool isCompleted() override { return future_ ? future_->completed() : inner_->isCompleted(); }
  bool isSuccess() const override { return future_ ? future_->hasValue() : inner_->isSuccess(); }
  std::exception_ptr exception() const override { return future_ ? future_->exception_ptr() : inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void synchronize() override {
    inner_->synchronize();
    future_ ? future_->wait() : run_after();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    if (future_) {
      future_->waitAndThrow();
    } else if (done) {
      run_after();
    }
    return done;
  }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  Ref<c10::ivalue::Future> getFuture() override { return future_ ? future_ : inner_->getFuture(); }
  Ref<c10::ivalue::Future> getFutureResult() override { return inner_->getFutureResult(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  void run_after() { std::call_once(once_, after_); }

  Ref<Work> inner_;
  Ref<c10::ivalue::Future> future_;
  std::function<void()> after_;  // moved into future_ where there is one
  std::once_flag once_;
};

class TappedBackend : public Backend {
 public:
  TappedBackend(Ref<Backend> inner, std::shared_ptr<CollectiveLog> log, std::string group)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        log_(std::move(log)),
        group_(std::move(group)) {
    // What the base class keeps without asking a virtual function.
    pg_uid_ = inner_->getGroupUid();
    pg_desc_ = inner_->getGroupDesc();
    bound_device_id_ = inner_->getBoundDeviceId();
  }

  // ---- watched
  Ref<Work> broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return watch("broadcast", t, t, [&] { return inner_->broadcast(t, o); });
  }
  Ref<Work> allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return watch("all_reduce", t, t, [&] { return inner_->allreduce(t, o); });
  }
  Ref<Work> allreduce_coalesced(Tensors& t, const c10d::AllreduceCoalescedOptions& o) override {
    return watch("all_reduce", t, t, [&] { return inner_->allreduce_coalesced(t, o); });
  }
  Ref<Work> reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return watch("reduce", t, t, [&] { return inner_->reduce(t, o); });
  }
  Ref<Work> allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return watch("all_gather", in, flat(out), [&] { return inner_->allgather(out, in, o); });
  }
  Ref<Work> _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    return watch("all_gather", {in}, {out}, [&] { return inner_->_allgather_base(out, in, o); });
  }
  Ref<Work> allgather_coalesced(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return watch("all_gather", in, flat(out), [&] { return inner_->allgather_coalesced(out, in, o); });
  }
  Ref<Work> allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return watch("all_gather", in, out, [&] { return inner_->allgather_into_tensor_coalesced(out, in, o); });
  }
  Ref<Work> gather(Lists& out, Tensors& in, const c10d::GatherOptions& o) override {
    return watch("gather", in, flat(out), [&] { return inner_->gather(out, in, o); });
  }
  Ref<Work> scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& o) override {
    return watch("scatter", flat(in), out, [&] { return inner_->scatter(out, in, o); });
  }
  Ref<Work> reduce_scatter(Tensors& out, Lists& in, const c10d::ReduceScatterOptions& o) override {
    return watch("reduce_scatter", flat(in), out, [&] { return inner_->reduce_scatter(out, in, o); });
  }
  Ref<Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return watch("reduce_scatter", {in}, {out}, [&] { return inner_->_reduce_scatter_base(out, in, o); });
  }
  Ref<Work> reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& o) override {
    return watch("reduce_scatter", in, out, [&] { return inner_->reduce_scatter_tensor_coalesced(out, in, o); });
  }
  Ref<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& to, std::vector<int64_t>& from,
                          const c10d::AllToAllOptions& o) override {
    return watch("all_to_all", {in}, {out}, [&] { return inner_->alltoall_base(out, in, to, from, o); });
  }
  Ref<Work> alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    return watch("all_to_all", in, out, [&] { return inner_->alltoall(out, in, o); });
  }

  // ---- forwarded
  Ref<Work> allreduce_sparse(Tensors& t, const c10d::AllreduceOptions& o) override {
    return inner_->allreduce_sparse(t, o);
  }
  Ref<Work> send(Tensors& t, int to, int tag) override { return inner_->send(t, to, tag); }
  Ref<Work> recv(Tensors& t, int from, int tag) override { return inner_->recv(t, from, tag); }
  Ref<Work> recvAnysource(Tensors& t, int tag) override { return inner_->recvAnysource(t, tag); }
  Ref<Work> barrier(const c10d::BarrierOptions& o) override { return inner_->barrier(o); }
  void monitoredBarrier(const c10d::BarrierOptions& o, bool all) override { inner_->monitoredBarrier(o, all); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return inner_->supportsShrinking(); }
  Ref<Backend> shrink(const std::vector<int64_t>& without, int flags, const Ref<Options>& o) override {
    return again(inner_->shrink(without, flags, o));
  }
  Ref<Backend> split(const Ref<c10d::Store>& s, const std::vector<int>& ranks, const Ref<Options>& o) override {
    return again(inner_->split(s, ranks, o));
  }
  Ref<Backend> merge(const Ref<c10d::Store>& s, const Ref<Options>& o, const int& rank, const int& size) override {
    return again(inner_->merge(s, o, rank, size));
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void startCoalescing() override { inner_->startCoalescing(); }
  Ref<Work> endCoalescing() override { return inner_->endCoalescing(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  Ref<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void setGroupUid(const std::string& uid) override {
    pg_uid_ = uid;
    inner_->setGroupUid(uid);
  }
  void eagerConnectSingleDevice(at::Device device) override { inner_->eagerConnectSingleDevice(device); }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  // NOLINTNEXTLINE(google-runtime-int): the base class' type
  at::Tensor allocateTensor(long size, at::TensorOptions o) override { return inner_->allocateTensor(size, o); }
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return inner_->supportsTensorAlloc(index); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

 private:
  Ref<Backend> again(Ref<Backend> made) const { return made ? tapped(std::move(made), log_, group_) : made; }

  template <class Call>
  Ref<Work> watch(const char* operation, const Tensors& inputs, Tensors outputs, Call call) {
    const uint64_t number = log_->before(group_, operation, inputs);
    Ref<Work> work = call();
    if (!work) return work;  // inside a coalesced group: endCoalescing() returns the work
    return c10::make_intrusive<TappedWork>(
        std::move(work), [log = log_, group = group_, operation, number, outputs = std::move(outputs)] {
          log->after(group, operation, number, outputs);
        });
  }

  Ref<Backend> inner_;
  std::shared_ptr<CollectiveLog> log_;
  std::string group_;
};

// setBackend() keeps the backend that is there already, so the maps themselves are changed.
struct Maps : c10d::ProcessGroup {
  static auto by_device() { return &Maps::deviceTypeToBackend_; }
  static auto by_type() { return &Maps::backendTypeToBackend_; }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> tapped(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<CollectiveLog> log,
                                         std::string group) {
  return c10::make_intrusive<TappedBackend>(std::move(inner), std::move(log), std::move(group));
}

int64_t tap_process_group(c10d::ProcessGroup& group, const std::shared_ptr<CollectiveLog>& log,
                          const std::string& name) {
  int64_t count = 0;
  std::unordered_map<Backend*, Ref<Backend>> replacements;
  for (const auto& device : group.getDeviceTypes()) (void)group.getBackend(device.type());  // lazily mapped ones appear
  const auto replace = [&](Ref<Backend>& backend) {
    if (!backend || dynamic_cast<TappedBackend*>(backend.get()) != nullptr) return;
    Ref<Backend>& replacement = replacements[backend.get()];
    if (!replacement) {
      replacement = tapped(backend, log, name);
      ++count;
    }
    backend = replacement;
  };
  for (auto& [type, backend] : group.*Maps::by_type()) replace(backend);
  for (auto& [device, backend] : group.*Maps::by_device()) replace(backend);
  return count;
}

}  // namespace faultline::race
