// Recorded operator calls in a file, for machines that never meet: inputs and results of every call of a forward, as
// tensors of a .safetensors file, and the calls themselves as JSON in its metadata. Nothing in it is executed on
// reading but operators of our own list, with arguments that fit their schemas: a trace from a stranger is only data.
#pragma once

#include <filesystem>

#include "diagnose/recorder.h"

namespace faultline {

// Calls that compute something and can be made again (those of a family: products, norms, attention, …); a tensor that
// several calls read is written once. -> how many calls were written
int64_t write_trace(const std::filesystem::path& path, const std::vector<RecordedCall>& calls);

// UsageError where the file is no trace, RuntimeFailure where it is damaged.
std::vector<RecordedCall> read_trace(const std::filesystem::path& path);
bool is_trace(const std::string& name);  // by its ending

}  // namespace faultline
