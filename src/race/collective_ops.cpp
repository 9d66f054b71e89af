// What Python needs of the collective tap: torch.ops.faultline.collective_tap_{start,wrap,stop}. The log is a JSONL
// file of this process; digests stay on their device until it is written, so that a tap does not synchronise with a GPU
// at every collective.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "base/config/config.h"
#include "numeric/apply.h"
#include "race/collective_tap.h"
#include "race/config.h"
#include "race/hooks.h"
#include "record/jsonl.h"
#include "site/torch_support.h"

namespace faultline::race {
namespace {

constexpr size_t kMostPending = 512;  // lines whose digests are still on a device

struct Corruption {
  std::string operation;
  uint64_t call = 0;
  Injection injection;
};

class FileLog : public CollectiveLog {
 public:
  FileLog(const std::string& path, int64_t rank, std::optional<Corruption> corruption)
      : writer_(path), rank_(rank), corruption_(std::move(corruption)) {}

  uint64_t before(const std::string& group, const char* operation, const std::vector<at::Tensor>& inputs) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t call = calls_[group]++;
    add(group, operation, call, "before", inputs);
    return call;
  }

  void after(const std::string& group, const char* operation, uint64_t call,
             const std::vector<at::Tensor>& outputs) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (corruption_ && corruption_->operation == operation && corruption_->call == call && !outputs.empty() &&
        outputs[0].numel() > 0) {
      const at::NoGradGuard no_gradients;
      Injector injector({corruption_->injection}, std::make_shared<std::atomic<bool>>(false), false);
      const at::Tensor& target = outputs[0];
      injector.visit({corruption_->injection.target, 0, 0, static_cast<int>(rank_)}, target,
                     [&] { return target.flip(0).contiguous(); });
      corrupted_ += injector.planted();
    }
    add(group, operation, call, "after", outputs);
  }

  void flush() {
    const std::lock_guard<std::mutex> lock(mutex_);
    write_pending();
    writer_.append({{"event", "end"}, {"rank", rank_}, {"corrupted", corrupted_}});
    writer_.flush_step();
  }

 private:
  struct Pending {
    Json line;
    std::vector<at::Tensor> digests;
  };

  void add(const std::string& group, const char* operation, uint64_t call, const char* when,
           const std::vector<at::Tensor>& tensors) {
    const at::NoGradGuard no_gradients;
    Pending pending;
    Json elements = Json::array();
    for (const at::Tensor& tensor : tensors) {
      pending.digests.push_back(numeric::digest(tensor.detach().contiguous()));
      elements.push_back(tensor.numel());
    }
    pending.line = {{"event", "collective"}, {"rank", rank_}, {"group", group},      {"operation", operation},
                    {"call", call},          {"when", when},  {"elements", elements}};
    pending_.push_back(std::move(pending));
    if (pending_.size() >= kMostPending) write_pending();
  }

  void write_pending() {
    for (Pending& pending : pending_) {
      Json digests = Json::array();
      for (const at::Tensor& value : pending.digests)
        digests.push_back(fmt::format("{:016x}", static_cast<uint64_t>(value.item<int64_t>())));
      pending.line["digests"] = digests;
      writer_.append(pending.line);
    }
    pending_.clear();
  }

  std::mutex mutex_;
  record::EventWriter writer_;
  int64_t rank_;
  std::optional<Corruption> corruption_;
  std::map<std::string, uint64_t> calls_;
  std::vector<Pending> pending_;
  uint64_t corrupted_ = 0;
};

std::mutex current_mutex;
std::shared_ptr<FileLog> current;

std::optional<Corruption> read_corruption(const std::string& text, int64_t rank) {
  if (text.empty()) return std::nullopt;
  const Schema schema =
      Schema::map()
          .field("operation",
                 Schema::choice({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
                                 "gather", "scatter"}),
                 {.required = true})
          .field("call", Schema::integer({.min = 0}),
                 {.required = true, .doc = "number of the collective in its group"})
          .field("rank", Schema::integer({.min = 0}), {.required = true})
          .field("kind", Schema::choice({"bitflip", "zero", "swap", "nan"}), {.default_value = Node("bitflip")})
          .field("element", Schema::integer({.min = 0}), {.default_value = Node(0)})
          .field("bit", Schema::integer({.min = 0, .max = 31}), {.default_value = Node(12)});
  const Node node = validate(parse_yaml(text, "--corrupt"), schema);
  if (node.at("rank").as_integer() != rank) return std::nullopt;
  Corruption corruption;
  corruption.operation = node.at("operation").as_string();
  corruption.call = static_cast<uint64_t>(node.at("call").as_integer());
  Injection& fault = corruption.injection;
  for (const FaultType type : {FaultType::kBitFlip, FaultType::kZero, FaultType::kSwap, FaultType::kNan})
    if (node.at("kind").as_string() == fault_type_name(type)) fault.kind = type;
  fault.element = node.at("element").as_integer();
  fault.bit = node.at("bit").as_integer();
  return corruption;
}

void start(const std::string& path, int64_t rank, const std::string& corruption) {
  site::translated([&] {
    const std::lock_guard<std::mutex> lock(current_mutex);
    if (current) throw UsageError("the collective tap is on already");
    current = std::make_shared<FileLog>(path, rank, read_corruption(corruption, rank));
    return 0;
  });
}

int64_t wrap(const std::string& group) {
  return site::translated([&]() -> int64_t {
    const std::lock_guard<std::mutex> lock(current_mutex);
    if (!current) throw UsageError("the collective tap is not on");
    return tap_process_group(*c10d::resolve_process_group(group), current, group);
  });
}

void stop() {
  site::translated([&] {
    const std::lock_guard<std::mutex> lock(current_mutex);
    if (current) current->flush();
    current.reset();
    return 0;
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(faultline, m) {
  m.def("collective_tap_start(str path, int rank, str corruption) -> ()", start);
  m.def("collective_tap_wrap(str group) -> int", wrap);
  m.def("collective_tap_stop() -> ()", stop);
}

}  // namespace faultline::race
