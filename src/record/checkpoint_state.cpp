#include "record/checkpoint_state.h"

#include <fmt/format.h>

#include "base/error.h"
#include "record/document.h"

namespace faultline::record {
namespace {

constexpr const char* kKind = "train_state";

[[noreturn]] void refuse(const std::string& origin, const std::string& what) {
  throw RuntimeFailure(
      fmt::format("{}: {}; the checkpoint is damaged: remove its folder to resume from the one before", origin, what));
}

int64_t count_at(const Json& document, const char* key, const std::string& origin) {
  const auto found = document.find(key);
  if (found == document.end() || !found->is_number_integer())
    refuse(origin,
           fmt::format("{}: wanted a count, found {}", key, found == document.end() ? "nothing" : found->type_name()));
  const bool fits = !found->is_number_unsigned() || found->get<uint64_t>() <= uint64_t{INT64_MAX};
  const int64_t value = fits ? found->get<int64_t>() : -1;
  if (value < 0) refuse(origin, fmt::format("{}: wanted a count, found {}", key, found->dump()));
  return value;
}

std::string text_at(const Json& document, const char* key, const std::string& origin) {
  const auto found = document.find(key);
  if (found == document.end() || !found->is_string()) refuse(origin, fmt::format("{}: wanted a text", key));
  return found->get<std::string>();
}

CheckpointState from_document(const Json& document, const std::string& origin) {
  CheckpointState state;
  state.stage = static_cast<uint64_t>(count_at(document, "stage", origin));
  state.step = count_at(document, "step", origin);
  state.steps_done = count_at(document, "steps_done", origin);
  state.event_lines = static_cast<uint64_t>(count_at(document, "event_lines", origin));
  state.optimizer_steps = count_at(document, "optimizer_steps", origin);
  state.model = text_at(document, "model", origin);
  state.tensors = text_at(document, "tensors", origin);
  const auto validation = document.find("validation");
  if (validation == document.end() || !validation->is_object()) refuse(origin, "validation: wanted an object");
  state.validation = *validation;
  state.evidence = document.value("evidence", Json());
  if (state.step > state.steps_done)
    refuse(origin, fmt::format("step {} of its stage, but only {} steps were done", state.step, state.steps_done));
  return state;
}

}  // namespace

void write_checkpoint_state(const std::filesystem::path& path, const CheckpointState& state) {
  write_document(path, kKind,
                 {{"stage", state.stage},
                  {"step", state.step},
                  {"steps_done", state.steps_done},
                  {"event_lines", state.event_lines},
                  {"validation", state.validation},
                  {"evidence", state.evidence},
                  {"optimizer_steps", state.optimizer_steps},
                  {"model", state.model},
                  {"tensors", state.tensors}});
}

CheckpointState read_checkpoint_state(const std::filesystem::path& path) {
  return from_document(read_document(path, kKind), path.string());
}

CheckpointState parse_checkpoint_state(std::string_view text, const std::string& origin) {
  return from_document(parse_document(text, kKind, origin), origin);
}

}  // namespace faultline::record
