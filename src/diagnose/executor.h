// The executors of this machine. In process: one trial after the other. Local: so many worker processes, each the
// program itself with `diagnose --worker`, with a model and torch threads of its own; trials go to them as lines of
// JSON and come back as such, and this process alone writes the store. A worker that dies is replaced; the trial it had
// is tried once more and then left for another run.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>

#include "diagnose/campaign.h"

namespace faultline {

std::unique_ptr<TrialExecutor> in_process_executor(const CampaignMachine& machine, const CampaignSpec& spec);
std::unique_ptr<TrialExecutor> local_executor(const CampaignMachine& machine, const CampaignSpec& spec, int jobs);

// The worker: the campaign on the first line, then a key on each; a record or an error for each, in that order. prepare
// is called once, before anything is loaded (it opens the campaign's device).
void serve_trials(std::istream& in, std::ostream& out, const std::function<void(const CampaignMachine&)>& prepare);

}  // namespace faultline
