#include "screen/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "screen/screen.h"

namespace faultline::screen {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kLargestFile = std::size_t{1} << 26;

bool is_record(const Json& json) {
  return json.is_object() && json.value("kind", "") == "screen" && json.contains("verdict") && json.contains("bound") &&
         json["bound"].is_object() && json["bound"].contains("launches") && json.contains("id");
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

std::string started(const Json& record) { return text_of(record.value("started", Json())); }

int64_t launches(const Json& record, const char* key) { return record["bound"]["launches"].value(key, int64_t{0}); }

// A label's value: quotes, backslashes and line ends escaped.
std::string label(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

}  // namespace

std::vector<Json> read_records(const std::vector<std::string>& files) {
  std::vector<Json> records;
  for (const std::string& file : files) {
    const Json json = parse_json_text(read_given_file(file, kLargestFile), file);
    if (is_record(json)) {
      records.push_back(json);
    } else if (json.is_object() && json.value("kind", "") == "screen_fleet" && json.contains("devices")) {
      for (const Json& one : json["devices"]) {
        if (!is_record(one)) throw UsageError(fmt::format("{}: a device of this fleet has no verdict", file));
        records.push_back(one);
      }
    } else {
      throw UsageError(
          fmt::format("{}: this is no record of `faultline screen`; give the files that --out wrote", file));
    }
  }
  return records;
}

Json merge(std::vector<Json> records) {
  std::stable_sort(records.begin(), records.end(),
                   [](const Json& a, const Json& b) { return started(a) < started(b); });
  std::vector<Json> devices;
  std::map<std::string, std::vector<Json>> history;
  for (const Json& record : records) {
    // A host without an id of its own is told apart by its name.
    const std::string id = record["id"].is_string()
                               ? record["id"].get<std::string>()
                               : text_of(record["identity"].value("host", Json())) + record["device"].dump();
    auto& before = history[id];
    Json now = record;
    if (!before.empty()) compare_with_earlier(now, before);
    before.push_back(record);
    const auto same =
        std::find_if(devices.begin(), devices.end(), [&](const Json& one) { return one["merge_key"] == id; });
    now["merge_key"] = id;
    if (same != devices.end())
      *same = now;
    else
      devices.push_back(now);
  }
  Json counts = {{"healthy", 0}, {"faulty", 0}, {"inconclusive", 0}};
  for (Json& device : devices) {
    device.erase("merge_key");
    const std::string verdict = text_of(device["verdict"]);
    counts[verdict] = counts.value(verdict, 0) + 1;
  }
  Json fleet = {{"kind", "screen_fleet"}, {"counts", counts}, {"exit_code", static_cast<int>(exit_code_of(devices))}};
  // Wrong bytes between ranks: rank 0 was told whom they are laid on, whichever rank that is.
  for (const Json& device : devices)
    if (const Json ranks = device.value("between_ranks", Json::object());
        !ranks.value("blamed", Json::array()).empty()) {
      fleet["between_ranks"].push_back({{"started", device.value("started", Json())},
                                        {"blamed_ranks", ranks["blamed"]},
                                        {"sentence", ranks["sentence"]}});
      fleet["exit_code"] = static_cast<int>(ExitCode::kFound);
    }
  fleet["devices"] = devices;
  return fleet;
}

std::string prometheus_text(const Json& fleet) {
  struct Metric {
    const char *name, *type, *help;
    std::function<Json(const Json& record)> value;
  };
  const auto weather = [](const char* key) {
    return [key](const Json& record) {
      const Json after = record["weather"].value("after", Json::object());
      return after.value(key, Json());
    };
  };
  const std::array metrics = {
      Metric{"faultline_screen_healthy", "gauge", "1: no wrong result and enough was tested",
             [](const Json& r) { return Json(r["verdict"] == "healthy" ? 1 : 0); }},
      Metric{"faultline_screen_faulty", "gauge", "1: a wrong result was found",
             [](const Json& r) { return Json(r["verdict"] == "faulty" ? 1 : 0); }},
      Metric{"faultline_screen_exit_code", "gauge", "0 healthy, 1 faulty, 2 inconclusive, 3 no proof",
             [](const Json& r) { return r["exit_code"]; }},
      Metric{"faultline_screen_launches", "gauge", "launches whose result was judged",
             [](const Json& r) { return Json(launches(r, "tested")); }},
      Metric{"faultline_screen_wrong_launches", "gauge", "of these, wrong",
             [](const Json& r) { return Json(launches(r, "wrong")); }},
      Metric{"faultline_screen_at_most_one_in", "gauge", "at most 1 wrong launch in so many, 95 %",
             [](const Json& r) { return Json(launches(r, "at_most_one_in")); }},
      Metric{"faultline_screen_seconds", "gauge", "how long it took",
             [](const Json& r) { return r.value("seconds", Json()); }},
      Metric{"faultline_screen_memory_bytes", "gauge", "memory that held patterns",
             [](const Json& r) { return r.value("memory", Json::object()).value("tested_bytes", Json()); }},
      Metric{"faultline_screen_ecc_uncorrected", "gauge", "the device's counter after the screen",
             weather("ecc_uncorrected")},
      Metric{"faultline_screen_ecc_corrected", "gauge", "the device's counter after the screen",
             weather("ecc_corrected")}};
  std::string text;
  for (const Metric& metric : metrics) {
    std::string lines;
    for (const Json& record : fleet["devices"]) {
      const Json value = metric.value(record);
      if (!value.is_number()) continue;  // absent is absent, not zero
      lines += fmt::format("{}{{host=\"{}\",device=\"{}\",id=\"{}\"}} {}\n", metric.name,
                           label(text_of(record["identity"].value("host", Json()))), label(text_of(record["device"])),
                           label(text_of(record["id"])), value.dump());
    }
    if (!lines.empty())
      text += fmt::format("# HELP {} {}\n# TYPE {} {}\n{}", metric.name, metric.help, metric.name, metric.type, lines);
  }
  return text;
}

void compare_with_earlier(Json& record, const std::vector<Json>& earlier) {
  if (earlier.empty()) {
    record["earlier"] = {{"screens", 0}};
    return;
  }
  Json verdicts = {{"healthy", 0}, {"faulty", 0}, {"inconclusive", 0}};
  int64_t tested = launches(record, "tested"), wrong = launches(record, "wrong");
  for (const Json& one : earlier) {
    const std::string verdict = text_of(one["verdict"]);
    verdicts[verdict] = verdicts.value(verdict, 0) + 1;
    tested += launches(one, "tested"), wrong += launches(one, "wrong");
  }
  const Json& last = earlier.back();
  Json changed = Json::array(), rose = Json::object();
  for (const char* key : {"name", "model", "serial", "vbios", "driver", "microcode", "pci", "kernel"}) {
    const Json before = last["identity"].value(key, Json()), now = record["identity"].value(key, Json());
    if (before != now) changed.push_back({{"what", key}, {"before", before}, {"now", now}});
  }
  const Json before = last["weather"].value("after", Json::object()),
             now = record["weather"].value("before", Json::object());
  for (const char* key :
       {"ecc_corrected", "ecc_uncorrected", "ecc_corrected_ever", "ecc_uncorrected_ever", "pcie_replays"})
    if (before.contains(key) && now.contains(key) && before[key].is_number() && now[key].is_number() &&
        now[key] > before[key])
      rose[key] = now[key].get<double>() - before[key].get<double>();
  record["earlier"] = {
      {"screens", earlier.size()},
      {"verdicts", verdicts},
      {"last", {{"started", last.value("started", Json())}, {"verdict", last["verdict"]}}},
      {"identity_changed", changed},
      {"counters_rose_since", rose},
      {"all_screens", {{"tested", tested}, {"wrong", wrong}, {"at_most_one_in", at_most_one_in(wrong, tested)}}}};
}

std::vector<Json> earlier_records(const fs::path& folder, const Json& id) {
  std::vector<Json> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".json" || !entry.is_regular_file(none)) continue;
    try {
      const Json json = parse_json_text(read_file(entry.path(), kLargestFile), entry.path().string());
      if (is_record(json) && json["id"] == id) found.push_back(json);
    } catch (const Error&) {
      continue;  // somebody else's file
    }
  }
  std::sort(found.begin(), found.end(), [](const Json& a, const Json& b) { return started(a) < started(b); });
  return found;
}

std::string file_name(const Json& record) {
  std::string name = fmt::format("screen-{}-{}-{}", text_of(record["identity"].value("host", Json())),
                                 text_of(record["device"]), started(record));
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
  return name + ".json";
}

}  // namespace faultline::screen
