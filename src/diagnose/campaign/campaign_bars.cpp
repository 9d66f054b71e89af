#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>

#include "base/json.h"
#include "diagnose/campaign/campaign.h"

namespace faultline::diagnose {
namespace {

constexpr int64_t kFlips = 1000;
constexpr int64_t kTrialsOfAPool = 300, kHealthyRuns = 1000, kIntermittent = 100;
constexpr std::array kSiteClasses = {"layer output", "linear", "norm", "attention", "activation"};

// "gain x linear"
bool is_kind_by_site(const std::string& pool) {
  const std::size_t at = pool.find(" x ");
  return at != std::string::npos &&
         std::ranges::any_of(kSiteClasses, [&](const char* site) { return pool.substr(at + 3) == site; });
}

struct Measured {
  double share = 1;
  std::string where;
  int64_t trials = 0;
};

// The pool with the lowest share; trials: of the smallest pool, since all must be large enough.
std::optional<Measured> worst(const Json& pools, const char* rate,
                              const std::function<bool(const std::string&)>& wanted) {
  std::optional<Measured> found;
  for (const auto& [name, rates] : pools.items()) {
    if (!wanted(name)) continue;
    const auto trials = rates[rate]["trials"].get<int64_t>();
    const double share = rates[rate]["right"].get<double>() / static_cast<double>(std::max<int64_t>(1, trials));
    if (!found) found = Measured{2, "", trials};
    found->trials = std::min(found->trials, trials);
    if (share < found->share) found->share = share, found->where = name;
  }
  return found;
}

class Bars {
 public:
  void at_least(const char* bar, const char* method, double wanted, const std::optional<Measured>& measured,
                int64_t trials) {
    if (!measured) return;
    add(bar, method, wanted, measured->share, measured->where, measured->trials, measured->share >= wanted,
        measured->trials >= trials);
  }
  void at_most(const char* bar, const char* method, double wanted, double measured, int64_t trials, int64_t needed) {
    add(bar, method, wanted, measured, "all", trials, measured <= wanted, trials >= needed);
  }
  Json all = Json::array();

 private:
  void add(const char* bar, const char* method, double wanted, double measured, const std::string& where,
           int64_t trials, bool holds, bool enough) {
    all.push_back({{"bar", bar},
                   {"method", method},
                   {"wanted", wanted},
                   {"measured", measured},
                   {"where", where},
                   {"trials", trials},
                   {"holds", enough ? Json(holds) : Json(nullptr)}});
  }
};

void judge_self(const Json& self, Bars& bars) {
  const Json& pools = self["pools"];
  const auto named = [](const char* name) { return [name](const std::string& pool) { return pool == name; }; };
  for (const char* pool : {"layer output x 1 in all", "layer output x 0.1 in all", "layer output x 0.01 in all"})
    bars.at_least("layer", "self", 0.99, worst(pools, "layer", named(pool)), kTrialsOfAPool);
  for (const auto& [pool, wanted] :
       {std::pair("inside the block x 1 in all", 0.95), std::pair("inside the block x 0.1 in all", 0.95),
        std::pair("inside the block x 0.01 in all", 0.90)})
    bars.at_least("layer and operator", "self", wanted, worst(pools, "layer_and_operator", named(pool)),
                  kTrialsOfAPool);
  const int64_t diagnoses = self["diagnoses_of_one_pass"].get<int64_t>();
  bars.at_most("forward-equivalents for the layer", "self", 8, self["layer_forward_equivalents"].get<double>(),
               diagnoses, 1);
  bars.at_most("forward-equivalents with operators", "self", 60, self["forward_equivalents"].get<double>(), diagnoses,
               1);
}

// Nowhere below classic: the pool where it is least above.
void judge_beside_classic(const char* name, const Json& method, const Json& classic, Bars& bars) {
  std::optional<Measured> least;
  for (const auto& [pool, rates] : method["pools"].items()) {
    if (!is_kind_by_site(pool) || !classic["pools"].contains(pool)) continue;
    const auto share = [](const Json& rate) {
      return rate["right"].get<double>() / static_cast<double>(std::max<int64_t>(1, rate["trials"].get<int64_t>()));
    };
    const double above = share(rates["layer"]) - share(classic["pools"][pool]["layer"]);
    const auto trials = rates["layer"]["trials"].get<int64_t>();
    if (!least) least = Measured{2, "", trials};
    least->trials = std::min(least->trials, trials);
    if (above < least->share) least->share = above, least->where = pool;
  }
  bars.at_least("layer, above classic", name, 0, least, kTrialsOfAPool);
  if (!method.contains("against_classic")) return;
  const Json& all = method["against_classic"]["all"];
  const bool more = all["only_this"].get<int64_t>() > all["only_classic"].get<int64_t>();
  bars.at_most("p of better than classic", name, 0.01, more ? all["p"].get<double>() : 1.0,
               all["only_this"].get<int64_t>() + all["only_classic"].get<int64_t>(), 1);
}

// Of the campaign `edges`: who is first accused where bits were flipped, and whether healthy layers are.
void judge_edges(const char* name, const Json& method, Bars& bars) {
  const Json& pools = method["pools"];
  const auto named = [](const std::string& wanted) {
    return [wanted](const std::string& pool) { return pool == wanted; };
  };
  bars.at_least("guilty layer first, exponent flips", name, 0.99, worst(pools, "layer", named(kExponentFlips)), kFlips);
  bars.at_least("guilty layer first, all", name, 0.99, worst(pools, "layer", named("all")), kFlips);
  const auto trials = pools["all"]["layer"]["trials"].get<int64_t>();
  bars.at_most("diagnoses that accuse healthy layers", name, 0, pools["all"]["accused_others"].get<double>(), trials,
               kFlips);
}

}  // namespace

Json judge_bars(const Json& methods) {
  Bars bars;
  for (const char* name : {"self", "shadow"}) {
    if (!methods.contains(name)) continue;
    const Json& method = methods[name];
    if (method["pools"].contains(kExponentFlips)) {
      judge_edges(name, method, bars);
      continue;
    }
    const bool shadow = std::string(name) == "shadow";
    if (shadow)
      bars.at_least("layer and operator", name, 0.99, worst(method["pools"], "layer_and_operator", is_kind_by_site),
                    kTrialsOfAPool);
    else
      judge_self(method, bars);
    bars.at_least("kind", name, shadow ? 0.95 : 0.85, worst(method["pools"], "kind", is_kind_by_site), kTrialsOfAPool);
    if (method.contains("healthy")) {
      const Json& all = method["healthy"]["all"];
      bars.at_most("healthy machines accused", name, 0, all["flagged"].get<double>(), all["runs"].get<int64_t>(),
                   kHealthyRuns);
    }
    if (method.contains("intermittent"))
      bars.at_least("layer, one call of ten, 64 passes", name, 0.95,
                    worst(method["intermittent"], "layer", [](const std::string& pool) { return pool == "all"; }),
                    kIntermittent);
    if (methods.contains("classic")) judge_beside_classic(name, method, methods["classic"], bars);
  }
  return bars.all;
}

}  // namespace faultline::diagnose
