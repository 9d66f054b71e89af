// The figures that the project wants to reach, each beside what a campaign measured. A bar is judged on its worst pool;
// with fewer trials than it asks for it is not judged, whatever the share.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace faultline {

// methods: as summarise() gives them. A list of {bar, method, wanted, measured, where, trials, holds}; holds is null
// where there are too few trials.
nlohmann::ordered_json judge_bars(const nlohmann::ordered_json& methods);

}  // namespace faultline
