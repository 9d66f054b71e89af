// A recipe in the words of the AORTA project, rewritten as ours, so that who has such recipes can hand them over as
// they are: `mode: probe` with its two axes, the workload llm_determinism, keys that have another name here. Nothing is
// translated in silence: every key that changes its name or does nothing here leaves a note, which the dry run prints.
// See docs/from-aorta.md.
#pragma once

#include <string>
#include <vector>

#include "base/config/schema.h"

namespace faultline::triage {

bool is_probe(const Node& given);  // `mode: probe`
Schema probe_schema();             // of such a recipe

// The recipe in our words; one that is in them already comes back as it is. UsageError where there is no counterpart.
Node from_aorta(const Node& given, std::vector<std::string>& notes);

}  // namespace faultline::triage
