// The hash is stored as well as computed: tables and directory names quote it, and a manifest whose recipe does not
// hash to it is refused.
#include "record/manifest.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <thread>

#include "base/error.h"
#include "record/document.h"

namespace faultline::record {
namespace {

const Json& field(const Json& document, const char* name, Json::value_t type, const std::filesystem::path& path) {
  const auto found = document.find(name);
  if (found == document.end() || found->type() != type) {
    throw RuntimeFailure(fmt::format("{}: {}: wanted {}, found {}", path.string(), name, Json(type).type_name(),
                                     found == document.end() ? "nothing" : found->type_name()));
  }
  return *found;
}

}  // namespace

std::string Manifest::hash() const { return json_hash(recipe); }

void write_manifest(const std::filesystem::path& path, const Manifest& manifest) {
  if (manifest.keyed_by != "row" && manifest.keyed_by != "element") {
    throw UsageError(fmt::format("keyed_by: wanted row or element, found '{}'", manifest.keyed_by));
  }
  write_document(path, "manifest",
                 {{"recipe_name", manifest.recipe_name},
                  {"recipe", manifest.recipe},
                  {"hash", manifest.hash()},
                  {"seeds", manifest.seeds},
                  {"versions", manifest.versions},
                  {"host", manifest.host},
                  {"device", manifest.device},
                  {"plan", manifest.plan},
                  {"keyed_by", manifest.keyed_by},
                  {"created", manifest.created}});
}

Manifest read_manifest(const std::filesystem::path& path) {
  using Type = Json::value_t;
  const Json document = read_document(path, "manifest");
  Manifest manifest;
  manifest.recipe_name = field(document, "recipe_name", Type::string, path).get<std::string>();
  manifest.recipe = field(document, "recipe", Type::object, path);
  manifest.seeds = field(document, "seeds", Type::object, path);
  manifest.versions = field(document, "versions", Type::object, path);
  manifest.host = field(document, "host", Type::object, path);
  manifest.device = field(document, "device", Type::object, path);
  manifest.plan = field(document, "plan", Type::array, path);
  manifest.keyed_by = field(document, "keyed_by", Type::string, path).get<std::string>();
  if (manifest.keyed_by != "row" && manifest.keyed_by != "element") {
    throw RuntimeFailure(fmt::format("{}: keyed_by: wanted row or element, found {}", path.string(),
                                     to_json_text(document["keyed_by"])));
  }
  manifest.created = field(document, "created", Type::number_float, path).get<double>();
  if (field(document, "hash", Type::string, path) != manifest.hash()) {
    throw RuntimeFailure(fmt::format("{}: hash: wanted {} for the recipe it holds, found {}", path.string(),
                                     manifest.hash(), to_json_text(document["hash"])));
  }
  return manifest;
}

void require_same_recipe(const Manifest& manifest, const Json& recipe, const std::filesystem::path& directory) {
  // Through text, so that a NaN or a 1 against a 1.0 compare as they are recorded.
  const Json wanted = parse_json_text(to_json_text(recipe), "the resolved recipe");
  if (json_hash(wanted) == manifest.hash()) return;
  const Json differences = Json::diff(manifest.recipe, wanted);
  const std::string place = differences.empty() ? "a number's type" : differences[0]["path"].get<std::string>();
  throw RuntimeFailure(fmt::format(
      "{}: belongs to recipe {}, asked to continue {}; they differ first at {}; start a new run or undo the change",
      directory.string(), manifest.hash(), json_hash(wanted), place));
}

Json host_description() {
  utsname names{};
  ::uname(&names);
  return {{"name", names.nodename},
          {"system", fmt::format("{} {}", names.sysname, names.release)},
          {"machine", names.machine},
          {"cores", std::thread::hardware_concurrency()}};
}

}  // namespace faultline::record
