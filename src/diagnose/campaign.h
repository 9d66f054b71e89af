// How often is a diagnosis right? A campaign plants one fault after another, of every kind, strength, extent and site,
// in layers, prompts and seeds that a trial's own seed chooses, lets every method diagnose the same broken machine, and
// keeps what they said beside the ledger that proves the fault. Healthy machines are among the trials. A trial whose
// fault changed nothing in a forward of its prompt is no trial: its seed is drawn anew.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "diagnose/examination.h"
#include "lab/loaded_model.h"
#include "record/campaign_store.h"

namespace faultline {

struct FaultGrid {
  struct Entry {
    std::string name, kind;  // "gain 1%", "gain": as Candidate::kind calls it
    std::string what;        // the short form's inside; {spread} stands for the site's standard deviation
  };
  struct Site {
    std::string name, pool;  // "q_proj", "linear"
    std::string where;       // "module=q_proj"
    std::string place;       // below the layer: "self_attn.q_proj"; "": the layer itself
  };
  std::vector<Entry> entries;
  std::vector<double> extents;  // shares of channels
  std::vector<Site> sites;
};
FaultGrid full_grid();
FaultGrid smoke_grid();

struct CampaignSpec {
  FaultGrid grid;
  std::vector<std::string> methods = {"classic", "self", "shadow"};
  int64_t trials = 19;  // a cell
  int64_t healthy = 1000;
  uint64_t seed = 0;
  int64_t tokens = 16;  // of a prompt, at most
  double seconds = 0;   // stop after so long; 0: when done
  at::Device reference = at::kCPU;
};

CampaignSpec full_campaign();
CampaignSpec smoke_campaign();  // seconds on a small model, two minutes on the default one

// Continues where the store is. progress: trials done, of how many.
void run_campaign(LoadedModel& loaded, const CampaignSpec& spec, CampaignStore& store,
                  const std::function<void(int64_t, int64_t)>& progress);

// Pools of kind x site class with Clopper-Pearson intervals, the confusion of kinds, healthy runs, and self and shadow
// beside classic with McNemar's exact test.
nlohmann::ordered_json summarise(CampaignStore& store);

}  // namespace faultline
