#include "diagnose/quant_scan.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/json.h"
#include "diagnose/observation.h"
#include "diagnose/recorder.h"
#include "numeric/apply.h"
#include "numeric/evidence.h"
#include "site/scope.h"

namespace faultline::diagnose {
namespace {

struct Scanned {
  site::PlaceId place;
  std::string surface;
  at::Tensor tensor;
};

double outlier_of(const at::Tensor& x) {
  const at::Tensor channels = x.reshape({-1, x.size(-1)}).to(at::kFloat).abs().amax(0);
  const double middle = channels.median().item<double>();
  return middle == 0 ? 0 : channels.max().item<double>() / middle;
}

ScanRow scan(const Scanned& one, const numeric::Rule& rule, const std::string& format, double outlier) {
  const at::Tensor copy = one.tensor.contiguous().clone(), ledger = numeric::make_ledger(copy.device());
  numeric::CallTensors tensors;
  tensors.ledger = ledger;
  numeric::apply_(copy, rule, {0, "scan"}, {0, 0, {}}, tensors);
  const at::Tensor columns = numeric::ledger_columns(ledger);
  const numeric::LedgerNumbers numbers = numeric::read_ledger(columns.data_ptr<double>());
  const site::Place& place = site::place_of(one.place);
  return {place.layer,
          place.path,
          one.surface,
          format,
          numbers.sqnr_db.value_or(std::numeric_limits<double>::infinity()),
          1 - numbers.survival,
          numbers.elements > 0 ? numbers.saturated / numbers.elements : 0,
          numbers.max_abs_error,
          outlier};
}

std::vector<Scanned> activations(const model::CausalLm& model, const at::Tensor& tokens) {
  std::vector<Scanned> all;
  at::Tensor x = model.embed(tokens.reshape(-1));
  for (int64_t i = 0; i < std::ssize(model.layers()); ++i) {
    const std::vector<RecordedCall> calls = record_calls([&] { x = model.run_layer(i, x, 1); });
    for (const RecordedCall& call : calls) {
      const bool product = call.name == "faultline::few_rows_linear" || call.name == "aten::mm";
      if (product || call.name == "aten::addmm") all.push_back({call.place, "input", call.tensor(product ? 0 : 1)});
    }
    all.push_back({model.layers()[static_cast<std::size_t>(i)].place, "layer_output", x});
  }
  return all;
}

}  // namespace

std::vector<ScanRow> quant_scan(model::CausalLm& model, const ScanOptions& options) {
  const at::NoGradGuard no_gradients;
  const site::PhaseGuard phase(site::Phase::kDiagnose);
  std::vector<Scanned> all;
  if (options.weights)
    for (const model::Linear* linear : model.linears()) all.push_back({linear->place, "weight", linear->weight});
  if (options.activations) {
    const std::vector<Scanned> more = activations(model, options.tokens.to(model.device()));
    all.insert(all.end(), more.begin(), more.end());
  }
  std::vector<std::pair<std::string, numeric::Rule>> formats;
  for (const numeric::FormatInfo& info : numeric::format_infos()) {
    const bool wanted = options.formats.empty() ||
                        std::find(options.formats.begin(), options.formats.end(), info.name) != options.formats.end();
    if (!wanted || (options.formats.empty() && (info.name == "bf16" || info.name == "fp16"))) continue;
    formats.emplace_back(
        info.name, numeric::parse_rule(fmt::format("quantize(format={})", info.name), numeric::RuleUse::kOnTensor));
  }
  std::vector<ScanRow> rows;
  for (const Scanned& one : all) {
    const double outlier = outlier_of(one.tensor);
    for (const auto& [name, rule] : formats) rows.push_back(scan(one, rule, name, outlier));
  }
  return rows;
}

Json scan_json(std::vector<ScanRow> rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.sqnr_db < b.sqnr_db; });
  auto json = Json::array();
  std::map<std::string, std::map<std::string, double>> suggested;  // format, layer
  for (const ScanRow& row : rows) {
    const bool finite = std::isfinite(row.sqnr_db);
    json.push_back({{"layer", row.layer},
                    {"place", row.place},
                    {"surface", row.surface},
                    {"format", row.format},
                    {"sqnr_db", finite ? Json(row.sqnr_db) : Json(nullptr)},
                    {"dead_zone", row.dead},
                    {"clipped", row.clipped},
                    {"max_error", row.max_error},
                    {"outlier", row.outlier}});
    if (row.surface == "layer_output" && finite)
      suggested[row.format][fmt::format("{}", row.layer)] = std::pow(10.0, -row.sqnr_db / 20);
  }
  return {{"rows", json}, {"suggested", suggested}};
}

}  // namespace faultline::diagnose
