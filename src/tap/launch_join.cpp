#include "tap/launch_join.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_set>

#include "base/json.h"

namespace faultline::tap {
namespace {

// By name: names repeat in every forward, and each is read once.
std::vector<LaunchKind> kinds_of(const LaunchList& list) {
  std::vector<LaunchKind> kinds;
  for (const std::string& name : list.names) kinds.push_back(classify_kernel(name));
  return kinds;
}

auto stream_of(const Launch& launch) { return std::tuple(launch.device, launch.context, launch.stream); }

std::vector<std::size_t> by_stream_and_time(const std::vector<Launch>& launches) {
  const auto key = [&](std::size_t i) {
    const Launch& launch = launches[i];
    return std::tuple(stream_of(launch), launch.start, launch.correlation, launch.node);
  };
  std::vector<std::size_t> order(launches.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

std::vector<bool> faulted(const std::vector<Launch>& launches, const std::vector<LaunchKind>& kinds,
                          const std::vector<std::size_t>& order) {
  const auto kind = [&](const Launch& launch) { return kinds[launch.name]; };
  const auto is_fault = [&](const Launch& launch) { return kind(launch) == LaunchKind{LaunchFamily::kFault}; };
  std::unordered_set<uint64_t> faulted_scopes;
  for (const Launch& launch : launches) {
    if (launch.scope != 0 && is_fault(launch)) faulted_scopes.insert(launch.scope);
  }
  std::vector<bool> result(launches.size(), false);
  for (std::size_t at = 0; at < order.size(); ++at) {
    const Launch& launch = launches[order[at]];
    if (kind(launch).part || is_fault(launch)) continue;
    if (faulted_scopes.contains(launch.scope)) {
      result[order[at]] = true;
      continue;
    }
    for (std::size_t next = at + 1; next < order.size(); ++next) {
      const Launch& later = launches[order[next]];
      if (stream_of(later) != stream_of(launch)) break;
      const LaunchKind between = kind(later);
      if (between.part && (between.family == LaunchFamily::kFault || between.family == kind(launch).family)) continue;
      result[order[at]] = is_fault(later) && (later.scope == 0 || later.scope == launch.scope);
      break;
    }
  }
  return result;
}

Json to_json(const LaunchCount& count) { return {{"launches", count.launches}, {"faulted", count.faulted}}; }

}  // namespace

std::vector<bool> faulted_launches(const LaunchList& list) {
  return faulted(list.launches, kinds_of(list), by_stream_and_time(list.launches));
}

LaunchTable tabulate(const LaunchList& list) {
  const std::vector<LaunchKind> kinds = kinds_of(list);
  const std::vector<bool> hit = faulted(list.launches, kinds, by_stream_and_time(list.launches));
  std::vector<LaunchCount> counts(list.names.size());
  LaunchTable table;
  for (std::size_t i = 0; i < list.launches.size(); ++i) {
    const Launch& launch = list.launches[i];
    ++table.launches;
    table.in_graphs += launch.node != 0;
    if (row_of_scope(launch.scope) == kLeftOutRow && !hit[i] && !kinds[launch.name].part) {
      ++table.families[kinds[launch.name].family].left_out;
      continue;
    }
    ++counts[launch.name].launches;
    counts[launch.name].faulted += hit[i];
  }
  for (std::size_t name = 0; name < counts.size(); ++name) {
    FamilyLaunches& family = table.families[kinds[name].family];
    if (kinds[name].part) {
      family.parts += counts[name].launches;
      continue;
    }
    for (LaunchCount* count : {&family.all, &family.kernels[short_kernel_name(list.names[name])]}) {
      count->launches += counts[name].launches;
      count->faulted += counts[name].faulted;
    }
  }
  return table;
}

Json to_json(const LaunchTable& table) {
  auto families = Json::object();
  for (const auto& [family, counts] : table.families) {
    Json entry = to_json(counts.all);
    entry["left_out"] = counts.left_out;
    entry["parts"] = counts.parts;
    entry["kernels"] = Json::object();
    for (const auto& [name, count] : counts.kernels) entry["kernels"][name] = to_json(count);
    families[std::string(name_of(family))] = std::move(entry);
  }
  return {{"launches", table.launches}, {"in_graphs", table.in_graphs}, {"families", std::move(families)}};
}

Json list_to_json(const LaunchList& list) {
  const std::vector<LaunchKind> kinds = kinds_of(list);
  const std::vector<std::size_t> order = by_stream_and_time(list.launches);
  const std::vector<bool> hit = faulted(list.launches, kinds, order);
  auto all = Json::array();
  for (const std::size_t i : order) {
    const Launch& launch = list.launches[i];
    all.push_back({{"name", short_kernel_name(list.names[launch.name])},
                   {"family", std::string(name_of(kinds[launch.name].family))},
                   {"part", kinds[launch.name].part},
                   {"faulted", static_cast<bool>(hit[i])},
                   {"device", launch.device},
                   {"stream", launch.stream},
                   {"graph", launch.graph},
                   {"node", launch.node},
                   {"correlation", launch.correlation},
                   {"scope", launch.scope},
                   {"start_ns", launch.start},
                   {"end_ns", launch.end}});
  }
  return all;
}

}  // namespace faultline::tap
