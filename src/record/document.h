// A whole-file JSON record (manifest.json, ledger.json, summary.json): an object with its "kind", its "version" and a
// "seal", the hash of everything else in canonical form. The file may be reformatted by an editor; a changed value, a
// file of another kind or of a later version is refused. Written atomically, pretty-printed: people read these.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/json.h"

namespace faultline::record {

constexpr int kDocumentVersion = 1;

// `body` is an object without the keys "kind", "version", "seal".
void write_document(const std::filesystem::path& path, const std::string& kind, const Json& body);

// The body again.
Json read_document(const std::filesystem::path& path, const std::string& kind);
Json parse_document(std::string_view text, const std::string& kind, const std::string& origin);

// 16 hexadecimal digits of the canonical text; equal values have equal hashes, whatever the order of their keys.
std::string json_hash(const Json& value);

}  // namespace faultline::record
