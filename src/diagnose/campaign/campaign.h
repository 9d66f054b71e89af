// How often is a diagnosis right? A campaign plants one fault after another and lets every method diagnose the same
// broken machine; what they said is kept beside the ledger that proves the fault. A cell is a kind of fault in a class
// of sites; its trials go through strengths, extents, sites and layers in turn, so that a campaign stopped at any time
// is a balanced sample of the grid. Healthy machines of every type and batch shape, intermittent faults and faults of
// falling strength have cells of their own. A fault that changes nothing in a forward of its prompt is drawn again;
// what never acts is counted apart and not judged.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "base/config/schema.h"
#include "base/json.h"
#include "diagnose/diagnosis.h"
#include "record/campaign_store.h"
#include "trials/executor.h"

namespace faultline::diagnose {

inline constexpr const char* kExponentFlips = "exponent";  // a kind of planted fault
inline constexpr int64_t kPassesForRare = 64;

struct FaultGrid {
  struct Entry {
    std::string name, kind;  // "gain 1%", "gain": as Candidate::kind calls it
    std::string what;        // the short form's inside; {spread} stands for `strength` of the site's standard deviation
    double strength = 0;
    std::string dtype = {};  // of the model; "": the campaign's
    int64_t passes = 1;
  };
  struct Site {
    std::string name, pool;   // "q_proj", "linear"
    std::string where;        // "module=q_proj"
    std::string place;        // below the layer: "self_attn.q_proj"; "": the layer itself
    bool in_a_layer = true;   // else `place` is the whole path
    bool is_a_class = false;  // of places, "operator=matmul": only the layer can be right
  };
  std::vector<Entry> entries;
  std::vector<double> extents;  // shares of channels
  std::vector<Site> sites;
  std::vector<Entry> rare;    // act in one call of ten
  std::vector<Entry> fading;  // for the curves: strengths from far below what can be seen
};
FaultGrid full_grid();
FaultGrid smoke_grid();
// Flips of every exponent bit, of the sign and of high mantissa bits, infinities and NaN, in each type: at every
// element, in single ones, rarely, now and then.
FaultGrid edges_grid();

struct CampaignSpec {
  std::string preset = "full";
  FaultGrid grid;
  std::vector<std::string> methods = {"classic", "self", "shadow"};
  int64_t trials = 300;  // of a cell; of flips of exponent bits eight times as many
  int64_t healthy = 1000, rare = 100, fading = 60;
  uint64_t seed = 0;
  int64_t tokens = 24;  // of a prompt, at most
};
CampaignSpec campaign_spec(const std::string& preset);  // full, edges, or smoke: seconds on a small model

// The machine on which trials run. weights: fingerprint of the model in that dtype, because another model may lie under
// the same name elsewhere or later; "": whatever is there.
struct CampaignMachine {
  std::string model = "default", dtype = "bf16", device = "cpu";
  std::string weights = {};
};

// What decides a trial's result: a store that was begun with another one is not continued.
std::string campaign_fingerprint(const CampaignMachine& machine, const CampaignSpec& spec);

// A cell's name says what its trials are.
struct Planned {
  const FaultGrid::Entry* entry = nullptr;  // null: healthy
  const FaultGrid::Site* site = nullptr;
  double extent = 1;
  int64_t layer = 0;
  bool rare = false, fading = false;
};
struct CampaignCell {
  std::string name;  // "gain | linear", "healthy", "intermittent", "curve gain"
  int64_t trials = 0;
};
std::vector<CampaignCell> campaign_cells(const CampaignSpec& spec);
Planned planned_trial(const CampaignSpec& spec, const record::TrialKey& key, int64_t layers);

// What is left to do, all cells interleaved.
std::vector<record::TrialKey> pending_trials(const CampaignSpec& spec, record::CampaignStore& store);

// UsageError where the store was begun with another campaign.
void check_campaign(record::CampaignStore& store, const std::string& fingerprint);

struct CampaignRun {
  std::filesystem::path folder;  // of the executor's tasks; what is left in it afterwards is worth nothing
  double time_limit = 0;         // seconds; no trial is begun later. 0: none
  std::function<void(int64_t done, int64_t pending)> progress = {};
};
struct CampaignEnd {
  int64_t done = 0, left = 0;
  int64_t lost = 0;  // tried again, because a process was killed or its machine was lost
  bool interrupted = false;
  std::vector<std::string> failures;
};
// Continues where the store is.
CampaignEnd run_campaign(trials::Executor& executor, const CampaignMachine& machine, const CampaignSpec& spec,
                         record::CampaignStore& store, const CampaignRun& options);

// Whether its fault changed something while this method looked: one that acts by chance may miss it and meet another.
bool ran_under_fault(const Json& said);

// Pools of kind x site class with Clopper-Pearson intervals, the confusion of kinds, healthy runs, cost, and self and
// shadow beside classic with McNemar's exact test. for_each: hands every trial to its argument.
Json summarise(const std::function<void(const std::function<void(const record::Trial&)>&)>& for_each,
               const std::string& origin = "the campaign");

// The figures that the project wants to reach, each beside what a campaign measured. A bar is judged on its worst pool;
// with fewer trials than it asks for it is not judged, whatever the share.

// methods: as summarise() gives them. A list of {bar, method, wanted, measured, where, trials, holds}; holds is null
// where there are too few trials.
Json judge_bars(const Json& methods);

// Trials as lines of JSON: what workers send, what is published beside a table, what a summary is made from again.

Json to_record(const record::Trial& trial);
record::Trial trial_from_record(const Json& record,
                                const std::string& origin);  // RuntimeFailure where a field is missing

// What a worker is told, and back.
Json campaign_request(const CampaignMachine& machine, const CampaignSpec& spec);
std::pair<CampaignMachine, CampaignSpec> campaign_from_request(const Json& request);

void write_records(record::CampaignStore& store, const std::filesystem::path& path);  // whole or not at all
// A store (.sqlite) or records (.jsonl).
void for_each_trial(const std::filesystem::path& path, const std::function<void(const record::Trial&)>& visit);

// The recipe section `diagnose:`, a campaign.

void register_diagnose_section();  // of the recipe's schema; once

CampaignSpec read_campaign(const Node& recipe);  // validated, with the section

}  // namespace faultline::diagnose
