#include <algorithm>

#include "base/schedule/schedule.h"

namespace faultline {
namespace {

Schema schema_of(const ScheduleParameter& parameter) {
  if (parameter.type == "float") return Schema::number();
  if (parameter.type == "int") return Schema::integer();
  if (parameter.type == "bool") return Schema::boolean();
  if (parameter.name == "zones") {
    return Schema::list(
        Schema::map()
            .field("first_layer", Schema::integer({.min = 0}), {.required = true, .doc = "counted from 0"})
            .field("last_layer", Schema::integer({.min = 0}), {.required = true, .doc = "included"})
            .field("early", Schema::number({.min = 0}),
                   {.default_value = Node(1.0), .doc = "multiplier before late_from"})
            .field("late", Schema::number({.min = 0}), {.default_value = Node(1.0), .doc = "multiplier after it"}),
        {.min = 1});
  }
  return Schema::list(Schema::number());
}

std::vector<double> numbers(const Node& list) {
  std::vector<double> values;
  for (const Node& item : list.items()) values.push_back(item.as_number());
  return values;
}

LayerZone read_zone(const Node& zone) {
  return {zone.at("first_layer").as_integer(), zone.at("last_layer").as_integer(), zone.at("early").as_number(),
          zone.at("late").as_number()};
}

}  // namespace

Schema schedule_schema() {
  return schedule_schema("kind", [](const Schema& map) { return map; });
}

Schema schedule_schema(const std::string& tag, const std::function<Schema(const Schema&)>& extended) {
  std::vector<std::pair<std::string, Schema>> kinds;
  for (const ScheduleInfo& info : schedule_infos()) {
    Schema map = Schema::map();
    for (const ScheduleParameter& parameter : info.parameters) {
      map =
          map.field(parameter.name, schema_of(parameter),
                    {.doc = parameter.meaning + " (" + parameter.range + "; default " + parameter.default_value + ")"});
    }
    kinds.emplace_back(info.name, extended(map).described_as(info.formula));
  }
  return Schema::tagged(tag, std::move(kinds));
}

ScheduleSpec read_schedule(const Node& schedule) {
  ScheduleSpec spec;
  spec.kind = schedule_kind(schedule.at("kind").as_string());
  const auto number = [&](const char* key, double& value) {
    if (const Node* node = schedule.find(key)) value = node->as_number();
  };
  const auto integer = [&](const char* key, int64_t& value) {
    if (const Node* node = schedule.find(key)) value = node->as_integer();
  };
  number("sigma_start", spec.sigma_start);
  number("sigma_end", spec.sigma_end);
  number("late_from", spec.late_from);
  number("elsewhere", spec.elsewhere);
  integer("num_stages", spec.num_stages);
  integer("epochs", spec.epochs);
  integer("stages_per_epoch", spec.stages_per_epoch);
  if (const Node* node = schedule.find("warmup_interval")) spec.warmup_interval = node->as_bool();
  if (const Node* node = schedule.find("boundaries")) spec.boundaries = numbers(*node);
  if (const Node* node = schedule.find("layer_multipliers")) spec.layer_multipliers = numbers(*node);
  if (const Node* node = schedule.find("zones")) {
    for (const Node& zone : node->items()) spec.zones.push_back(read_zone(zone));
  }
  try {
    check(spec);
  } catch (const UsageError& error) {
    throw schedule.error(error.what());
  }
  return spec;
}

}  // namespace faultline
