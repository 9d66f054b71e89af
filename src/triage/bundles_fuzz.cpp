// Fuzzes files of mitigations and environments, which people share. What is accepted must be harmless: every variable
// one that a recipe may set, none the launcher's, none that loads code or names a secret; bundles that merge do so in
// any order alike.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/config/config.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "record/environment.h"
#include "triage/bundles.h"
#include "triage/variables.h"

namespace faultline::triage {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_bundle(const Bundle& bundle) {
  require(is_safe_name(bundle.name));
  for (const auto& [name, value] : bundle.variables) {
    require(!is_launcher_variable(name) && !record::key_names_a_secret(name));
    require(name.find('=') == std::string::npos && name.find('\0') == std::string::npos);
    require(value.find('\0') == std::string::npos);
    require(!name.starts_with("LD_") && !name.starts_with("PYTHON") && !name.ends_with("PATH"));
    require(name.find("INJECTION") == std::string::npos && value.find('/') == std::string::npos);
  }
}

std::string merged(const std::vector<Bundle>& bundles) {
  try {
    std::string text;
    for (const auto& [name, value] : merge_bundles("fuzz", bundles)) text += name + "=" + value + "\n";
    return text;
  } catch (const UsageError&) {
    return "conflict";
  }
}

void check(const Node& given) {
  const Node definitions = validate(given, bundles_schema());
  Catalogue catalogue;
  const size_t known = catalogue.mitigations().size();
  catalogue.add(definitions, true);
  std::vector<Bundle> added(catalogue.mitigations().begin() + static_cast<std::ptrdiff_t>(known),
                            catalogue.mitigations().end());
  for (const Bundle& bundle : added) {
    check_bundle(bundle);
    require(catalogue.mitigation(Node(bundle.name)).variables == bundle.variables);
    require(no_op_reason(bundle, bundle.variables).empty() == bundle.variables.empty());
  }
  const std::string forwards = merged(added);
  require(merged({added.rbegin(), added.rend()}) == forwards);
}

}  // namespace
}  // namespace faultline::triage

FAULTLINE_FUZZ_TARGET(bundles_fuzz)(const uint8_t* data, size_t size) {
  using namespace faultline;
  using namespace faultline::triage;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    triage::check(parse_yaml(text, "fuzz.yaml"));
  } catch (const UsageError&) {
  }
  return 0;
}
