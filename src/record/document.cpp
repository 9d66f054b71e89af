// The version is looked at before the seal: a later version may seal differently and deserves its own sentence.
#include "record/document.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text.h"

namespace faultline::record {
namespace {

constexpr size_t kMaxDocumentBytes = size_t{1} << 28;

int64_t version_of(const Json& document, const std::string& origin) {
  if (!document.is_object() || !document.contains("version") || !document["version"].is_number_integer()) {
    throw RuntimeFailure(fmt::format("{}: not a record of faultline: it has no \"version\"", origin));
  }
  return document["version"].get<int64_t>();
}

}  // namespace

std::string json_hash(const Json& value) { return fmt::format("{:016x}", hash64(to_json_text(value))); }

void write_document(const std::filesystem::path& path, const std::string& kind, const Json& body) {
  FL_ASSERT(body.is_object());
  FL_ASSERT(!body.contains("kind") && !body.contains("version") && !body.contains("seal"));
  Json document = body;
  document["kind"] = kind;
  document["version"] = kDocumentVersion;
  document["seal"] = json_hash(document);
  write_file_atomically(path, to_json_text(document, 2) + "\n");
}

Json read_document(const std::filesystem::path& path, const std::string& kind) {
  return parse_document(read_file(path, kMaxDocumentBytes), kind, path.string());
}

Json parse_document(std::string_view text, const std::string& kind, const std::string& origin) {
  Json document = parse_json_text(text, origin);
  const int64_t version = version_of(document, origin);
  if (version > kDocumentVersion) {
    throw RuntimeFailure(fmt::format("{}: written as version {}, this program knows {}; use a newer faultline", origin,
                                     version, kDocumentVersion));
  }
  const Json seal = document.value("seal", Json());
  document.erase("seal");
  if (version != kDocumentVersion || seal != json_hash(document)) {
    throw RuntimeFailure(
        fmt::format("{}: edited or damaged: its seal is {}, its content has {}; records are not edited", origin,
                    to_json_text(seal), json_hash(document)));
  }
  if (document.value("kind", Json()) != kind) {
    throw RuntimeFailure(
        fmt::format("{}: wanted a {}, found a {}", origin, kind, to_json_text(document.value("kind", Json()))));
  }
  document.erase("kind");
  document.erase("version");
  return document;
}

}  // namespace faultline::record
