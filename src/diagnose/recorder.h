// Every operator call of a run, with what went in and what came out, and every boundary that a tensor crossed. Taken
// above the backend by a boxed fallback that only the recording thread sees, so what came out is what the machine made
// of it, planted faults included. What an operator writes into is copied before it runs. There is one recorder: a
// diagnosis keeps all calls of a forward, a trace (compare/trace_writer.h) takes each as it comes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "site/place.h"

namespace faultline::diagnose {

struct RecordedCall {
  std::string name;  // "aten::mm"; "boundary": one tensor in, one out
  site::PlaceId place = site::kNowhere;
  std::vector<c10::IValue> arguments;     // as they were before the call
  std::vector<at::Tensor> results;        // returned, or written into arguments
  std::optional<c10::OperatorHandle> op;  // none: a boundary, or an operator that this process does not have
  std::string overload = {};
  std::optional<at::Device> machine = {};  // where it ran, of a call that was read from a trace
  std::optional<uint64_t> writes = {};     // into these tensors until the call was over; none: they are nobody else's

  const at::Tensor& tensor(std::size_t i) const { return arguments.at(i).toTensor(); }
  bool is_boundary() const { return name == "boundary"; }
};

// What is known of an operator before it is called.
struct OperatorFacts {
  std::string name, overload, family;  // "aten::mm", "", "matmul"
  std::vector<std::size_t> written;    // arguments that it writes into, what is called its output first
  bool is_view = false;
  bool is_cache_write = false;  // into pages of keys and values: what it writes into is not copied and is no result
  bool is_wrapper = false;      // a function that a library registered around its operators, which are recorded
  bool is_leaf = false;         // a kernel of a library for every backend, and no sum of torch's operators
};

// Who takes the calls. Calls that are not wanted run as if nobody recorded.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual bool wants(const OperatorFacts& facts) const = 0;
  virtual void take(const OperatorFacts& facts, RecordedCall&& call) = 0;
};

// While it lives, calls of this thread go to the sink.
class Recording {
 public:
  explicit Recording(CallSink& sink);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  CallSink* before_;
  bool has_plan_;
};

// Tensors are kept, not copied, but those that an operator writes into.
std::vector<RecordedCall> record_calls(const std::function<void()>& run);
// Whether something after the call wrote into what it was given or gave: then it cannot be made again.
bool overwritten(const RecordedCall& call);

}  // namespace faultline::diagnose
