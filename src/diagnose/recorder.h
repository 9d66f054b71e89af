// Every operator call of a run, with what went in and what came out, and every boundary that a tensor crossed. Taken
// above the backend by a boxed fallback that only the recording thread sees, so what came out is what the machine made
// of it, planted faults included.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <optional>
#include <vector>

#include "site/place.h"

namespace faultline::diagnose {

struct RecordedCall {
  std::string name;  // "aten::mm"; "boundary": one tensor in, one out
  site::PlaceId place = site::kNowhere;
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> results;
  std::optional<c10::OperatorHandle> op;  // none: a boundary
  uint64_t writes = 0;                    // into these tensors until the call was over, as torch counts them

  const at::Tensor& tensor(std::size_t i) const { return arguments.at(i).toTensor(); }
};

// Tensors are kept, not copied.
std::vector<RecordedCall> record_calls(const std::function<void()>& run);
// The same for a run that somebody else makes, on this thread: between the two.
void begin_recording();
std::vector<RecordedCall> end_recording();

// Whether the call, or something after it, wrote into what it was given or gave: then it cannot be made again.
bool overwritten(const RecordedCall& call);

}  // namespace faultline::diagnose
