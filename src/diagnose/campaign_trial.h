// Where the trials of a campaign are made: a model of every type that they need, prepared once; a fault planted, shown
// to act, diagnosed by every method, taken away again.
#pragma once

#include <map>
#include <memory>

#include "diagnose/campaign.h"
#include "diagnose/examination.h"
#include "lab/injection.h"
#include "lab/loaded_model.h"

namespace faultline {

class TrialBench {
 public:
  TrialBench(CampaignMachine machine, CampaignSpec spec);

  Trial run(const TrialKey& key);

 private:
  struct Model {  // of one type
    LoadedModel loaded;
    std::unique_ptr<Examiner> examiner;
    Censuses censuses;
    std::vector<at::Tensor> prompts;  // (1, T)
  };
  Model& model(const std::string& dtype);
  at::Tensor prompt(const Model& model, uint64_t seed, int64_t rows) const;  // (rows, T)
  double spread(Model& model, const Planned& planned);
  std::unique_ptr<Injection> plant(Model& model, const Planned& planned, uint64_t seed);
  // The fault of the first seed that acts; null: none does.
  std::unique_ptr<Injection> plant_what_acts(Model& model, const Planned& planned, const at::Tensor& tokens,
                                             uint64_t seed);

  CampaignMachine machine_;
  CampaignSpec spec_;
  std::map<std::string, Model> models_;
  std::map<std::string, double> spreads_;
};

}  // namespace faultline
