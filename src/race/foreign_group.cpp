#include "race/foreign_group.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "race/heartbeat.h"

namespace faultline::race {
namespace {

thread_local ForeignMail current_mail;

void call_with(ForeignCall call, const char* what, int64_t number, ForeignMail mail) {
  current_mail = std::move(mail);
  const char* complaint = call(what, number);
  current_mail = {};
  if (complaint != nullptr) throw RuntimeFailure(complaint);
}

class ForeignWork : public c10d::Work {
 public:
  ForeignWork(ForeignCall call, int64_t number) : call_(call), number_(number) {}
  bool isCompleted() override { return done_; }
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds) override {
    if (!done_) call_with(call_, "wait", number_, {});
    return done_ = true;
  }

 private:
  ForeignCall call_;
  int64_t number_;
  bool done_ = false;
};

class ForeignBackend : public c10d::Backend {
 public:
  ForeignBackend(ForeignCall call, int rank, int ranks, Heartbeat& heartbeat)
      : Backend(rank, ranks), call_(call), heartbeat_(heartbeat) {}
  const std::string getBackendName() const override { return "foreign"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return start("all_gather", output, input);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions&) override {
    return start("reduce_scatter", output, input);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    FL_ASSERT(tensors.size() == 1);
    return start("all_reduce", tensors[0], tensors[0]);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to,
                                               std::vector<int64_t>& from, const c10d::AllToAllOptions&) override {
    FL_ASSERT(to.empty() && from.empty());  // even splits only
    return start("all_to_all", output, input);
  }
  void shutdown() override { call_with(call_, "close", 0, {}); }

 private:
  c10::intrusive_ptr<c10d::Work> start(const char* operation, const at::Tensor& output, const at::Tensor& input) {
    const int64_t number = next_++;
    heartbeat_.call();
    call_with(call_, operation, number, {"", output, input});
    return c10::make_intrusive<ForeignWork>(call_, number);
  }

  ForeignCall call_;
  Heartbeat& heartbeat_;
  int64_t next_ = 0;
};

}  // namespace

const ForeignMail& foreign_mail() { return current_mail; }

c10::intrusive_ptr<c10d::Backend> make_foreign_group(ForeignCall call, const std::string& order, int rank, int ranks,
                                                     Heartbeat& heartbeat) {
  call_with(call, "open", 0, {order, {}, {}});
  return c10::make_intrusive<ForeignBackend>(call, rank, ranks, heartbeat);
}

}  // namespace faultline::race
