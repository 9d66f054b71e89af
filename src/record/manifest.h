// What a run is, written once before its first step and never changed: whoever reads only the record must be able to
// tell what was asked, with which seeds, by which program, on which machine, and which sites the plan matched. Resuming
// compares the resolved recipe, not the file it came from: a renamed recipe resumes, a changed number does not.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"

namespace faultline::record {

struct Manifest {
  std::string recipe_name;           // the recipe's file name without its ending
  Json recipe = Json::object();      // resolved: every default written out
  Json seeds = Json::object();       // {"seed": 7, …}
  Json versions = Json::object();    // faultline, torch, CUDA, compiler, commit
  Json host = Json::object();        // host_description()
  Json device = Json::object();      // name, index, memory, driver
  Json plan = Json::array();         // one object per rule: name, what, phases, matched "sites", excluded
  std::string keyed_by = "element";  // how random numbers are addressed: "row" or "element"
  double created = 0;                // seconds since 1970; set by RunDirectory::create

  std::string hash() const;  // of the resolved recipe
};

void write_manifest(const std::filesystem::path& path, const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& path);

// RuntimeFailure that names the first differing key, when `recipe` is not the one the manifest holds.
void require_same_recipe(const Manifest& manifest, const Json& recipe, const std::filesystem::path& directory);

// Name, system and number of cores of this machine.
Json host_description();

}  // namespace faultline::record
