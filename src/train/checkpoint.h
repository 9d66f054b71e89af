// A training checkpoint: the folder step-000040 with state.safetensors (fp32 masters, both moments, the reference
// policy's weights where there is one) and state.json (where the run stands, what it belongs to, the hash of the other
// file). It is prepared under a hidden name, synced and renamed: a folder that can be seen is whole. No generator state
// is kept, because there is none (Note in trainer.h).
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "model/causal_lm.h"
#include "train/adamw.h"
#include "train/trainer.h"

namespace faultline::train {

struct TrainState {
  TrainPosition done;        // the last step of this stage that is complete, counted from 1: `step` steps are behind us
  int64_t steps_done = 0;    // of all stages
  uint64_t event_lines = 0;  // in events.jsonl when the checkpoint was made
  Json validation = Json::object();  // the last one's metrics
  Json evidence = nullptr;           // of everything up to here, where the run keeps any
};

// Of the parameters that are trained: their names, sizes and the model's shape. Where these are adapters, a checkpoint
// says nothing about the weights below them, so these are part of it.
std::string model_fingerprint(model::CausalLm& model, const AdamW& optimizer, bool adapters_only = false);

// Of the end of a stage the masters are enough: the next one begins with new moments.
enum class Moments { kKept, kLeftOut };

void write_checkpoint(const std::filesystem::path& folder, const TrainState& state, const std::string& fingerprint,
                      AdamW& optimizer, const std::vector<at::Tensor>& reference, Moments moments = Moments::kKept);

// Into the optimizer and the model. RuntimeFailure: torn or damaged; UsageError: of another model.
TrainState read_checkpoint(const std::filesystem::path& folder, const std::string& fingerprint, AdamW& optimizer,
                           std::vector<at::Tensor>& reference, Moments moments = Moments::kKept);
// What tells the weights of one checkpoint from those of another.
std::string checkpoint_hash(const std::filesystem::path& folder);

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& checkpoints);
// Removes all but the newest `keep`, and what killed processes left unfinished.
void retain_checkpoints(const std::filesystem::path& checkpoints, int64_t keep);

// A trained model as a Hugging Face folder: fused weights in their parts, under the names that transformers knows.

// Views, in the model's order.
std::vector<std::pair<std::string, at::Tensor>> hugging_face_weights(model::CausalLm& model);

// config.json and weights; the tokenizer's files are taken from `origin`, a folder or a .gguf file. The folder must not
// exist; it appears whole.
void write_model_folder(model::CausalLm& model, const std::filesystem::path& origin,
                        const std::filesystem::path& folder);

}  // namespace faultline::train
