// Where the trials of a campaign are made: a model of every type that they need, prepared once; a fault planted, shown
// to act, diagnosed by every method, taken away again.
#pragma once

#include <map>
#include <memory>

#include "diagnose/campaign/campaign.h"
#include "diagnose/examination.h"
#include "lab/injection.h"
#include "lab/loaded_model.h"

namespace faultline::diagnose {

class TrialBench {
 public:
  TrialBench(CampaignMachine machine, CampaignSpec spec);

  record::Trial run(const record::TrialKey& key);

 private:
  struct Model {  // of one type
    lab::LoadedModel loaded;
    std::unique_ptr<Examiner> examiner;
    tap::Censuses censuses;
    std::vector<at::Tensor> prompts;  // (1, T)
  };
  Model& model(const std::string& dtype);
  at::Tensor prompt(const Model& model, uint64_t seed, int64_t rows) const;  // (rows, T)
  double spread(Model& model, const Planned& planned);
  std::unique_ptr<lab::Injection> plant(Model& model, const Planned& planned, uint64_t seed);
  // The fault of the first seed that acts; null: none does.
  std::unique_ptr<lab::Injection> plant_what_acts(Model& model, const Planned& planned, const at::Tensor& tokens,
                                                  uint64_t seed);

  CampaignMachine machine_;
  CampaignSpec spec_;
  std::map<std::string, Model> models_;
  std::map<std::string, double> spreads_;
};

// A worker: told the campaign by the first line, then a trial by each; answers with its record or an error.
class TrialServer {
 public:
  // prepare: called once, before anything is loaded (it opens the campaign's device).
  explicit TrialServer(std::function<void(const CampaignMachine&)> prepare = {}) : prepare_(std::move(prepare)) {}
  std::string answer(const std::string& line);  // "": none is wanted

 private:
  std::function<void(const CampaignMachine&)> prepare_;
  std::optional<std::pair<CampaignMachine, CampaignSpec>> campaign_;
  std::unique_ptr<TrialBench> bench_;
};

}  // namespace faultline::diagnose
