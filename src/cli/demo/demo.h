// The acts of `faultline demo`. Each is one function: it calls the library as the command of its name does, and gives
// back what the terminal shows, what the record keeps (the report is drawn from that alone) and whether it went as it
// should. Nothing here knows an expected number: an act that fails says so.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/loaded_model.h"
#include "numeric/rule.h"
#include "record/run_record.h"

namespace faultline::cli {

struct Act {
  std::string name;                     // census, healthy, damage, diagnosis, hardening, race
  std::vector<std::string> lines = {};  // for the terminal
  Json record = Json::object();         // for the report
  bool as_it_should = true;
};

// What the acts share.
struct Stage {
  lab::LoadedModel& loaded;
  uint64_t seed = 0;
  bool quick = false;
  std::filesystem::path folder;                           // the run directory: files of acts go there
  record::Maker maker = {};                               // of the records that acts leave there
  std::function<void(const std::string&)> progress = {};  // what is being done, for people who wait
};

// A fault as the seed chooses it: kind, layer and place.
struct PlantedFault {
  std::string text;   // the short form, as --fault takes it
  std::string kind;   // as a diagnosis names it
  std::string place;  // module path
  int64_t layer = 0;
  Node recipe(uint64_t seed) const;  // that plants it
};
PlantedFault choose_fault(uint64_t seed, int64_t layers);

Act census_act(Stage& stage);
Act healthy_act(Stage& stage);
Act damage_act(Stage& stage, const PlantedFault& fault);
Act diagnosis_act(Stage& stage, const PlantedFault& fault);
// How much the act that trains does: SFT steps, GRPO steps of each arm, problems that each model is judged on.
struct Lesson {
  int64_t taught = 8, reinforced = 2, problems = 32;
  double share() const;  // of the time that the first one takes
};
// The longest that fits into `seconds` where the first one takes `whole`; the shortest where none does.
Lesson lesson_for(double whole, double seconds);
// guided_layer: what the diagnosis accused; nothing: it accused no layer, and only the global arm is run.
Act hardening_act(Stage& stage, const PlantedFault& fault, std::optional<int64_t> guided_layer, const Lesson& lesson);
Act race_act(Stage& stage);

// Two texts beside each other, wrapped.
std::vector<std::string> in_columns(const std::string& left, const std::string& right, std::size_t width);

}  // namespace faultline::cli
