// A triage for somebody else to look at: recipe, records, logs, provenance and the metrics of a triage's folder in one
// archive, without the secrets that can be recognised (record/redaction.h). It only reads the folder. What is packed,
// what was replaced in it and what was left out stands in the archive itself, as contents.json.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"

namespace faultline::triage {

struct SupportBundleOptions {
  std::filesystem::path folder;           // of a triage
  std::filesystem::path out;              // .tar, .tar.gz or .tgz; must not exist
  uint64_t most_log = uint64_t{1} << 20;  // bytes of a log or of a file of a command; its middle is left out beyond
  bool hide_names = false;                // home folder, user and machine, too
};

// Writes the archive. -> contents.json: {name, files: [{path, bytes, packed, replaced: {kind: count}}], left_out:
// [{path, why}], replaced: {kind: count}}. UsageError where the folder is no triage's, holds a link in a record's
// place, or the archive cannot be put there.
Json write_support_bundle(const SupportBundleOptions& options);

}  // namespace faultline::triage
