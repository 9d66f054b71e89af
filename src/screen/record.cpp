#include "screen/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace faultline::screen {
namespace {

constexpr std::size_t kMostFailures = 16;

template <class Number>
void add(Json& object, const char* key, Number value) {
  if (object.is_null()) object = Json::object();
  object[key] = object.value(key, Number{0}) + value;
}

Json& named(Json& list, const char* key, const Json& value) {
  for (Json& one : list)
    if (one[key] == value) return one;
  list.push_back({{key, value}});
  return list.back();
}

void add_check(Json& record, const Check& check, const Spent& spent) {
  Json& row = named(record["checks"], "check", check.name);
  row["group"] = group_name(check.group), row["operation"] = check.operation, row["dtype"] = check.dtype;
  row["shape"] = check.shape, row["pattern"] = check.pattern;
  add(row, "launches", spent.launches), add(row, "wrong", spent.wrong);
  add(row, "products", spent.launches * check.products);
  add(row, "elements", spent.launches * check.elements);
  add(row, "bytes", spent.launches * check.bytes);
  add(row, "operations", static_cast<double>(spent.launches) * check.operations);
  add(row, "seconds", spent.seconds);
  add(row, "canaries", spent.canaries), add(row, "canaries_seen", spent.seen);
  for (int when = 0; when < kWhens; ++when)
    add(row["by_time"], when_name(static_cast<When>(when)), spent.by_when[static_cast<std::size_t>(when)]);
  if (spent.plain_launches == 0) return;
  // Once for a check of a core that was screened twice: counts and seconds add up.
  Json& rates = row["rates"];
  const bool product = check.group == Group::kProduct;
  const double each = product ? check.operations : static_cast<double>(check.bytes);
  rates["unit"] = product ? "operations/s" : "bytes/s";
  add(rates, "timed_work", each * static_cast<double>(spent.timed_launches));
  add(rates, "timed_seconds", spent.timed_seconds), add(rates, "plain_seconds", spent.plain_seconds);
  add(rates, "plain_work", each * static_cast<double>(spent.plain_launches));
}

Json bound_of(int64_t wrong, int64_t tested) {
  return {{"tested", tested}, {"wrong", wrong}, {"at_most_one_in", at_most_one_in(wrong, tested)}};
}

// Sums over checks by group, and what they allow to say.
void sum_up(Json& record) {
  Json groups = Json::object(), canaries = {{"planted", 0}, {"seen", 0}};
  Json bound = {{"confidence", 0.95}};
  int64_t launches = 0, wrong = 0, products = 0, wrong_products = 0;
  for (const Json& row : record["checks"]) {
    Json& group = groups[row["group"].get<std::string>()];
    for (const char* key : {"launches", "wrong", "products", "elements", "bytes"})
      add(group, key, row[key].get<int64_t>());
    add(group, "operations", row["operations"].get<double>()), add(group, "seconds", row["seconds"].get<double>());
    add(canaries, "planted", row["canaries"].get<int64_t>());
    add(canaries, "seen", row["canaries_seen"].get<int64_t>());
    launches += row["launches"].get<int64_t>(), wrong += row["wrong"].get<int64_t>();
    products += row["products"].get<int64_t>();
    // A launch of many products that is wrong has at least one wrong product.
    if (row["group"] == "product") wrong_products += row["wrong"].get<int64_t>();
  }
  bound["launches"] = bound_of(wrong, launches);
  bound["products"] = bound_of(wrong_products, products);
  for (auto& [name, group] : groups.items()) {
    group["at_most_one_in"] = at_most_one_in(group["wrong"].get<int64_t>(), group["launches"].get<int64_t>());
  }
  canaries["missed"] =
      record["canaries"].is_object() ? record["canaries"].value("missed", Json::array()) : Json::array();
  record["groups"] = groups, record["bound"] = bound, record["canaries"] = canaries;
}

// Rates while screening, and unjudged: how long the same work would have taken at each check's own unjudged rate.
void sum_rates(Json& record) {
  Json rates = Json::object();
  for (const Json& row : record["checks"]) {
    if (!row.contains("rates")) continue;
    const Json& own = row["rates"];
    const double work = own["timed_work"].get<double>(), plain = own["plain_seconds"].get<double>();
    const auto count = [&](const std::string& name) {
      Json& sum = rates[name];
      add(sum, "work", work), add(sum, "seconds", own["timed_seconds"].get<double>());
      add(sum, "plain_seconds", plain / own["plain_work"].get<double>() * work);
      sum["unit"] = own["unit"];
    };
    const std::string group = row["group"];
    count(group == "copy" ? row["check"].get<std::string>() : group);
    if (group == "product") count("product " + row["dtype"].get<std::string>());
  }
  for (auto& [name, sum] : rates.items()) {
    const double work = sum["work"].get<double>();
    sum["screening"] = work / sum["seconds"].get<double>(), sum["plain"] = work / sum["plain_seconds"].get<double>();
    sum["share"] = sum["screening"].get<double>() / sum["plain"].get<double>();
  }
  if (!rates.empty()) record["rates"] = rates;
}

void add_once(Json& list, const std::string& sentence) {
  if (std::find(list.begin(), list.end(), Json(sentence)) == list.end()) list.push_back(sentence);
}

}  // namespace

void add_parts(Json& record, const std::vector<Part>& parts) {
  for (const char* key : {"checks", "failures", "not_tested", "broken_off"})
    if (!record.contains(key)) record[key] = Json::array();
  if (!record.contains("failures_not_examined")) record["failures_not_examined"] = 0;
  if (!record.contains("canaries")) record["canaries"] = {{"missed", Json::array()}};
  int64_t asked = 0, had = 0;
  std::set<const MemoryUnderTest*> memories;
  for (const Part& part : parts) {
    for (std::size_t i = 0; i < part.result.spent.size(); ++i) {
      const Check& check = *part.list->checks[i];
      add_check(record, check, part.result.spent[i]);
      if (check.memory && memories.insert(check.memory.get()).second)
        asked += check.memory->asked, had += check.memory->bytes;
    }
    for (const std::string& sentence : part.list->not_tested) add_once(record["not_tested"], sentence);
    for (const std::string& sentence : part.result.missed_canaries) record["canaries"]["missed"].push_back(sentence);
    add(record, "failures_not_examined", part.result.failures_not_examined);
    for (const Failure& failure : part.result.failures) {
      if (record["failures"].size() >= kMostFailures) {
        add(record, "failures_not_examined", int64_t{1});
        continue;
      }
      Json json = to_json(failure);
      json["part"] = part.name;
      if (part.core) json["core"] = *part.core;
      record["failures"].push_back(json);
    }
    if (!part.result.broken_off.empty())
      add_once(record["broken_off"],
               part.core ? fmt::format("core {}: {}", *part.core, part.result.broken_off) : part.result.broken_off);
    if (part.core) {
      Json& row = named(record["cores"], "core", *part.core);
      add(row[part.name], "launches", part.result.launches());
      add(row[part.name], "wrong", part.result.wrong());
    }
  }
  if (asked > 0) record["memory"] = {{"asked_bytes", asked}, {"tested_bytes", had}};
  sum_up(record);
  sum_rates(record);
}

void add_record(Json& record, const Json& part, const std::string& name) {
  for (const Json& row : part.at("checks")) {
    Json copy = row;
    copy["check"] = fmt::format("{} ({})", row["check"].get<std::string>(), name);
    record["checks"].push_back(copy);
  }
  for (Json failure : part.at("failures")) {
    failure["part"] = name;
    if (record["failures"].size() < kMostFailures)
      record["failures"].push_back(failure);
    else
      add(record, "failures_not_examined", int64_t{1});
  }
  for (const Json& sentence : part.at("canaries").at("missed"))
    record["canaries"]["missed"].push_back(name + ": " + sentence.get<std::string>());
  for (const Json& sentence : part.at("broken_off"))
    record["broken_off"].push_back(name + ": " + sentence.get<std::string>());
  for (const Json& sentence : part.at("not_tested"))
    add_once(record["not_tested"], name + ": " + sentence.get<std::string>());
  for (const Json& core : part.value("cores", Json::array())) {
    Json& row = named(record["cores"], "core", core.at("core"));
    row[name] = core.value("together", Json::object());
  }
  sum_up(record);
}

}  // namespace faultline::screen
