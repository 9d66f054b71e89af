#include "diagnose/compare/shared_places.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "diagnose/observation.h"
#include "diagnose/recomputation.h"

namespace faultline::diagnose {
namespace {

int64_t columns_of(const TracedCall& call) { return call.shape.empty() ? 0 : call.shape.back(); }

bool is_product(const TracedCall& call) {
  return product_arguments(call.call).has_value() && call.call.place != site::kNowhere;
}

// One product of one token, of those that were kept.
struct At {
  const TracedCall* call = nullptr;
  int64_t row = 0;  // of what is stored
};

struct Landmark {
  std::map<uint64_t, At> rows;         // by the tokens up to them; the first time they ran
  std::map<int64_t, int64_t> columns;  // of the part -> of what is stored
  std::string fused;                   // the place of the product that it is a part of; "": of its own
};

using Landmarks = std::map<std::string, Landmark>;

std::vector<int64_t> numbers(const Json& sample, const char* key, int64_t count) {
  if (sample.is_object() && sample.contains(key)) return sample[key].get<std::vector<int64_t>>();
  return evenly(count, count);
}

uint64_t key_of(const TokenRows& rows, int64_t row, int64_t count, int64_t first_row) {
  if (first_row >= 0 && first_row + count <= std::ssize(rows.keys))
    return rows.keys.at(static_cast<std::size_t>(first_row + row));
  if (count == std::ssize(rows.keys)) return rows.keys.at(static_cast<std::size_t>(row));
  if (count == std::ssize(rows.ends)) return rows.ends.at(static_cast<std::size_t>(row)).key;  // the last of each
  return 0;
}

Landmarks landmarks_of(const Trace& trace) {
  Landmarks all;
  for (const TracedCall& call : trace.calls) {
    if (!is_product(call)) continue;
    const std::string& place = site::place_of(call.call.place).path;
    int64_t count = 1;
    for (std::size_t i = 0; i + 1 < call.shape.size(); ++i) count *= call.shape[i];
    for (const Part& part : parts_of(place, columns_of(call), trace.header.at("weights"))) {
      Landmark& mark = all[part.place];
      if (part.place != place) mark.fused = place;
      if (!call.is_stored) continue;
      const std::vector<int64_t> rows = numbers(call.sample, "rows", count);
      for (std::size_t i = 0; i < rows.size(); ++i)
        if (const uint64_t key =
                key_of(trace.forwards[static_cast<std::size_t>(call.forward)].rows, rows[i], count, call.first_row))
          mark.rows.try_emplace(key, At{&call, static_cast<int64_t>(i)});
      if (!mark.columns.empty()) continue;
      const std::vector<int64_t> columns = numbers(call.sample, "columns", columns_of(call));
      for (std::size_t i = 0; i < columns.size(); ++i)
        if (columns[i] >= part.first && columns[i] < part.first + part.size)
          mark.columns.emplace(columns[i] - part.first, static_cast<int64_t>(i));
    }
  }
  return all;
}

at::Tensor gathered(const std::vector<At>& rows, bool of_input, const std::vector<int64_t>& columns) {
  std::vector<at::Tensor> all;
  for (const At& one : rows) {
    const RecordedCall& call = one.call->call;
    const ProductArguments where = *product_arguments(call);
    at::Tensor row = flat(of_input ? call.tensor(where.x) : call.results[0]).select(0, one.row).to(at::kDouble);
    if (of_input && where.scales >= 0) {
      const at::Tensor scale = call.tensor(static_cast<std::size_t>(where.scales)).reshape(-1);
      row = row * scale[scale.numel() > 1 ? one.row : 0].to(at::kDouble);
    }
    all.push_back(row);
  }
  const at::Tensor stacked = at::stack(all);
  return of_input ? stacked : stacked.index_select(1, at::tensor(columns, at::kLong));
}

double root_mean_square(const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); }

// What another order of the same sum gives, in the type of the operator.
double reordered(const TracedCall& traced) {
  const RecordedCall& call = traced.call;
  const ProductArguments where = *product_arguments(call);
  const at::Tensor x = flat(call.tensor(where.x));
  const at::Tensor weight = where.transposed ? call.tensor(where.weight).t() : call.tensor(where.weight);
  if (where.scales >= 0) return std::nan("");
  if (x.numel() * weight.size(0) > (int64_t{1} << 31)) return std::nan("");
  const at::Tensor one = x.mm(weight.t()).to(at::kDouble);
  const at::Tensor other = x.flip(1).contiguous().mm(weight.flip(1).contiguous().t()).to(at::kDouble);
  const double size = root_mean_square(one);
  return size > 0 ? root_mean_square(one - other) / size : 0;
}

SharedPlace shared_place(const std::string& place, bool is_output, const at::Tensor& a, const at::Tensor& b) {
  SharedPlace shared;
  shared.place = place, shared.is_output = is_output, shared.layer = site::layer_of_path(place);
  shared.rows = a.size(0), shared.elements = a.numel(), shared.reordered = std::nan("");
  shared.share_equal = a.eq(b).to(at::kDouble).mean().item<double>();
  const double size = root_mean_square(a);
  shared.difference = size > 0 ? root_mean_square(a - b) / size : root_mean_square(a - b);
  return shared;
}

double relative_own(const std::map<const TracedCall*, Own>& own, const TracedCall* call, double Own::* what) {
  const auto found = own.find(call);
  return found == own.end() || found->second.size <= 0 ? std::nan("") : found->second.*what / found->second.size;
}

std::vector<std::string> places_in_order(const Trace& trace) {
  std::vector<std::string> all;
  std::set<std::string> known;
  for (const TracedCall& call : trace.calls) {
    if (!is_product(call)) continue;
    for (const Part& part :
         parts_of(site::place_of(call.call.place).path, columns_of(call), trace.header.at("weights")))
      if (known.insert(part.place).second) all.push_back(part.place);
  }
  return all;
}

void list_partners(const Landmarks& a, const Landmarks& b, std::vector<std::string>& sentences) {
  for (const auto& [first, second, name, other] : {std::tuple(&a, &b, 'a', 'b'), std::tuple(&b, &a, 'b', 'a')}) {
    std::vector<std::string> alone;
    int64_t fused = 0;
    for (const auto& [place, mark] : *first) {
      const auto found = second->find(place);
      if (found == second->end())
        alone.push_back(place);
      else
        fused += !mark.fused.empty() && found->second.fused.empty();
    }
    if (fused > 0)
      sentences.push_back(
          fmt::format("{} products of {} are parts of a fused one and stand alone in {}", fused, name, other));
    if (alone.empty()) continue;
    sentences.push_back(fmt::format("{}: {} has it and {} does not{}", alone.front(), name, other,
                                    alone.size() == 1 ? "" : fmt::format(", and {} more", alone.size() - 1)));
  }
}

}  // namespace

std::map<std::string, double> order_of_products(const Trace& a, const Trace& b) {
  std::vector<std::string> all = places_in_order(a);
  const std::set<std::string> known(all.begin(), all.end());
  for (const std::string& place : places_in_order(b))
    if (!known.contains(place)) all.push_back(place);
  std::map<std::string, double> order;
  for (std::size_t i = 0; i < all.size(); ++i) order.emplace(all[i], static_cast<double>(i + 1));
  for (const Trace* trace : {&a, &b}) {
    for (const TracedCall& call : trace->calls) {
      if (!is_product(call)) continue;
      const std::string& place = site::place_of(call.call.place).path;
      order.try_emplace(place, order.at(parts_of(place, columns_of(call), trace->header.at("weights")).front().place));
    }
  }
  return order;
}

SharedPlaces shared_places(const Trace& a, const Trace& b, const std::map<const TracedCall*, Own>& own_a,
                           const std::map<const TracedCall*, Own>& own_b) {
  SharedPlaces shared;
  const Landmarks marks_a = landmarks_of(a), marks_b = landmarks_of(b);
  list_partners(marks_a, marks_b, shared.without_partner);
  for (const std::string& place : places_in_order(a)) {
    const auto found = marks_b.find(place);
    if (found == marks_b.end()) continue;
    const Landmark &first = marks_a.at(place), &second = found->second;
    std::vector<At> rows_a, rows_b;
    for (const auto& [key, row] : first.rows)
      if (const auto other = second.rows.find(key); other != second.rows.end())
        rows_a.push_back(row), rows_b.push_back(other->second);
    std::vector<int64_t> columns_a, columns_b;
    for (const auto& [column, at] : first.columns)
      if (const auto other = second.columns.find(column); other != second.columns.end())
        columns_a.push_back(at), columns_b.push_back(other->second);
    if (rows_a.empty() || columns_a.empty()) continue;
    const at::Tensor x_a = gathered(rows_a, true, {}), x_b = gathered(rows_b, true, {});
    if (x_a.sizes() != x_b.sizes()) {
      shared.without_partner.push_back(fmt::format(
          "{}: reads {} numbers a row in a and {} in b (a part of it on each rank?)", place, x_a.size(1), x_b.size(1)));
      continue;
    }
    shared.places.push_back(shared_place(place, false, x_a, x_b));
    SharedPlace output =
        shared_place(place, true, gathered(rows_a, false, columns_a), gathered(rows_b, false, columns_b));
    output.own_a = relative_own(own_a, rows_a[0].call, &Own::error),
    output.own_b = relative_own(own_b, rows_b[0].call, &Own::error);
    output.allowed = relative_own(own_a, rows_a[0].call, &Own::allowed);
    output.reordered = reordered(*rows_a[0].call);
    shared.places.push_back(std::move(output));
  }
  return shared;
}

}  // namespace faultline::diagnose
