// `faultline train` under torchrun or srun: this process's place among those that train together.
#pragma once

#include "cli/command.h"
#include "lab/training_run.h"

namespace faultline::cli {

struct TrainingJob {
  train::Replicas replicas;  // alone where no launcher started us
  std::string device;        // of this rank where the launcher gave every rank a GPU; "": as the command line says
  std::string why_gloo;      // what keeps a rank from NCCL; "" where nothing does
  std::function<void()> close = [] {};  // after the last exchange

  // Of gradients: "nccl" from GPU to GPU, "gloo" through the CPU's memory; "" where alone.
  std::string exchange() const;
  Globals globals_of(const Globals& given) const;         // quiet but for the first rank, on this rank's device
  std::string tell(const std::string& from_first) const;  // what the first rank says, on all of them
  void agree_on_model(model::CausalLm& model) const;      // UsageError where the ranks' weights differ
};

// What the other ranks' records cannot prove: the first rank's, which people read, must not be called good for it.
void add_complaints_of_others(const train::Replicas& replicas, std::vector<Complaint>& complaints);

// NCCL carries what lies on GPUs where every rank has one of its own (`device` is cuda, as on the command line) and the
// module of NCCL; all ranks choose alike. UsageError where the recipe's shards cannot be shared equally, a run is to be
// resumed, or the ranks were given different recipes.
TrainingJob join_training(const lab::TrainingSpec& spec, const Node& recipe, bool resumes, const std::string& device);

}  // namespace faultline::cli
