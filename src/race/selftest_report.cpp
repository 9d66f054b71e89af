// What a self-test found, as a sentence, a table and JSON.
#include <fmt/format.h>

#include <array>
#include <map>

#include "race/selftest.h"

namespace faultline::race {

int64_t SelftestResult::planted() const {
  int64_t sum = 0;
  for (const SelftestRow& row : rows) sum += row.planted;
  return sum;
}
int64_t SelftestResult::planted_outside() const {
  int64_t sum = 0;
  for (const SelftestRow& row : rows) sum += row.source == "thread" ? row.planted : 0;
  return sum;
}
bool SelftestResult::passed() const {
  if (!misses.empty() || clean_alarms != 0 || rows.empty()) return false;
  for (const SelftestRow& row : rows)
    if (row.detected != row.planted || row.attributed != row.planted) return false;
  return true;
}

std::string SelftestResult::sentence() const {
  int64_t detected = 0, attributed = 0;
  for (const SelftestRow& row : rows) detected += row.detected, attributed += row.attributed;
  return fmt::format(
      "{}: {} faults planted ({} from another thread), {} detected, {} attributed to the right cause, rank and layer; "
      "{} alarms in {} clean iterations x {} ranks; {:.1f} s",
      passed() ? "passed" : "FAILED", planted(), planted_outside(), detected, attributed, clean_alarms,
      clean_iterations, ranks, seconds);
}

std::vector<std::vector<std::string>> matrix(const SelftestResult& result) {
  std::map<std::pair<std::string, FaultType>, std::map<Place, std::array<int64_t, 3>>> cells;
  for (const SelftestRow& row : result.rows) {
    auto& cell = cells[{row.source, row.kind}][row.place];
    cell[0] += row.planted, cell[1] += row.detected, cell[2] += row.attributed;
  }
  std::vector<std::vector<std::string>> table = {{"planted by", "kind"}};
  for (int place = 0; place < kPlaces; ++place) table[0].emplace_back(place_name(static_cast<Place>(place)));
  for (auto& [who, by_place] : cells) {
    std::vector<std::string> line = {who.first, fault_type_name(who.second)};
    for (int place = 0; place < kPlaces; ++place) {
      const auto found = by_place.find(static_cast<Place>(place));
      line.push_back(found == by_place.end()
                         ? "-"
                         : fmt::format("{}/{}/{}", found->second[2], found->second[1], found->second[0]));
    }
    table.push_back(line);
  }
  table.push_back({"", "attributed / detected / planted"});
  return table;
}

Json to_json(const SelftestResult& result) {
  Json rows = Json::array();
  for (const SelftestRow& row : result.rows)
    rows.push_back({{"source", row.source},
                    {"setting", row.setting},
                    {"kind", fault_type_name(row.kind)},
                    {"place", place_name(row.place)},
                    {"planted", row.planted},
                    {"detected", row.detected},
                    {"attributed", row.attributed}});
  return {{"passed", result.passed()},
          {"planted", result.planted()},
          {"planted_outside", result.planted_outside()},
          {"rows", rows},
          {"misses", result.misses},
          {"clean_iterations", result.clean_iterations},
          {"clean_alarms", result.clean_alarms},
          {"ranks", result.ranks},
          {"seconds", result.seconds}};
}

}  // namespace faultline::race
