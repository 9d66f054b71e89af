// Whether a model fits: its weights in the type asked for, against the memory that this process may still have. Asked
// before the first weight is read, because a system that runs out of memory kills processes without a sentence.
#pragma once

#include "model/checkpoint.h"

namespace faultline {

int64_t weight_bytes(const Checkpoint& checkpoint, at::ScalarType dtype);  // norms are kept in fp32

// What the system says is available, swap included, or what the control group leaves, if that is less; the largest
// number there is where neither says anything. `root`: "/", or a folder that looks like it, for tests.
int64_t available_memory(const std::filesystem::path& root = "/");

// UsageError naming the model, what it needs and what there is.
void refuse_what_does_not_fit(const Checkpoint& checkpoint, at::ScalarType dtype, int64_t available);

}  // namespace faultline
