// Fuzzes what resuming reads before it touches a tensor. The first byte chooses: state.json as it is; the same with its
// seal repaired, because random bytes never pass it; a whole state.safetensors, header and extents. Refusing is fine,
// anything but a RuntimeFailure is a finding, and so is a position that no run can have.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/fuzz_target.h"
#include "record/checkpoint_state.h"
#include "record/document.h"

namespace faultline::record {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_state(std::string_view text) {
  const CheckpointState state = parse_checkpoint_state(text, "fuzz");
  require(state.step >= 0 && state.steps_done >= state.step && state.optimizer_steps >= 0);
  require(state.validation.is_object());
}

std::string sealed(std::string_view text) {
  Json document = parse_json_text(text, "fuzz");
  if (!document.is_object()) return std::string(text);
  document["kind"] = "train_state";
  document["version"] = kDocumentVersion;
  document.erase("seal");
  document["seal"] = json_hash(document);
  return to_json_text(document);
}

// As read_tensors in train/checkpoint.cpp takes a file apart.
void check_tensors(std::string_view file) {
  const uint64_t header = safetensors_header_size(file.substr(0, kSafetensorsPrefix), file.size(), "fuzz");
  const uint64_t data = kSafetensorsPrefix + header;
  require(data <= file.size());
  for (const SafetensorsEntry& entry :
       parse_safetensors_header(file.substr(kSafetensorsPrefix, header), file.size() - data, "fuzz")) {
    if (entry.dtype != "F32") continue;
    check_safetensors_bytes(entry, sizeof(float), "fuzz");
    require(data + entry.end <= file.size());
    const std::string copy(file.substr(data + entry.begin, entry.end - entry.begin));
    require(copy.size() == entry.end - entry.begin);
  }
}

}  // namespace
}  // namespace faultline::record

FAULTLINE_FUZZ_TARGET(checkpoint_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::record;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 3) {
      case 0: check_state(rest); break;
      case 1: check_state(sealed(rest)); break;
      default: check_tensors(rest);
    }
  } catch (const RuntimeFailure&) {
  }
  return 0;
}
