#include "model/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "model/cuda/graph.h"
#include "model/decode_batch.h"
#include "site/boundary.h"

namespace faultline::model {
namespace {

constexpr int64_t kPrefillTokensCpu = 4096, kPrefillTokensCuda = 32768;
constexpr int64_t kStepsPerLookCuda = 16;  // how often the host asks what has ended
constexpr int64_t kContextStep = 128;

int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

void check_requests(const std::vector<Request>& requests, const ModelConfig& config) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto length = std::ssize(requests[i].prompt);
    if (length == 0) throw UsageError(fmt::format("prompt {} is empty; give at least one token", i));
    if (requests[i].max_new_tokens < 1)
      throw UsageError(fmt::format("prompt {}: max_new_tokens must be at least 1", i));
    if (length + requests[i].max_new_tokens > config.context)
      throw UsageError(fmt::format("prompt {} has {} tokens and may make {} more; the model's context holds {}", i,
                                   length, requests[i].max_new_tokens, config.context));
    for (const int64_t token : requests[i].prompt) {
      if (token < 0 || token >= config.vocabulary)
        throw UsageError(
            fmt::format("prompt {} holds token {}; the model knows 0 to {}", i, token, config.vocabulary - 1));
    }
  }
}

struct Generator::State {
  const CausalLm& model;
  GenerateOptions options;
  Statistics statistics;
  std::optional<DecodeBatch> batch;
  std::optional<DecodeGraph> graph;
  uint64_t captured_under = 0;  // site_listener_changes() at capture

  // This run.
  const std::vector<Request>* requests = nullptr;
  std::vector<Completion> completions;
  std::vector<std::size_t> owner;  // of each slot: the request; SIZE_MAX: free
  std::vector<int64_t> seen;       // tokens of each slot that the host has taken
  std::size_t next = 0;

  State(const CausalLm& model, GenerateOptions options) : model(model), options(std::move(options)) {}

  bool on_cuda() const { return model.device().is_cuda(); }

  void prepare();
  void fill_free_slots();
  void prefill(const std::vector<std::pair<int64_t, std::size_t>>& started);
  void decode(int64_t steps, int64_t slots);
  void take_results(int64_t slots);
  int64_t compact(int64_t slots);
  int64_t longest_left() const;
  std::vector<Completion> run();
};

// Memory for the widest run so far; kept, so that a captured graph stays valid from run to run.
void Generator::State::prepare() {
  int64_t context = 0, budget = 0;
  for (const Request& request : *requests) {
    context = std::max(context, std::ssize(request.prompt) + request.max_new_tokens);
    budget = std::max(budget, request.max_new_tokens);
  }
  const int64_t slots = std::min<int64_t>(options.slots, std::ssize(*requests));
  if (batch && batch->cache.rows >= slots && (!on_cuda() || batch->cache.rows == slots) &&
      batch->cache.context >= context && batch->tokens.size(1) >= budget)
    return;
  graph.reset();
  batch.reset();
  context = std::min(rounded_up(context, kContextStep), std::max(context, model.config().context));
  batch.emplace(model, slots, context, budget, options.end_tokens);
}

void Generator::State::prefill(const std::vector<std::pair<int64_t, std::size_t>>& started) {
  const auto prompt_of = [&](std::size_t i) -> const std::vector<int64_t>& {
    return (*requests)[started[i].second].prompt;
  };
  const int64_t most = on_cuda() ? kPrefillTokensCuda : kPrefillTokensCpu;
  std::size_t first = 0;
  while (first < started.size()) {
    std::size_t last = first;
    int64_t width = 0;  // of the padded block: every prompt but for its last token
    while (last < started.size()) {
      const int64_t wider = std::max<int64_t>(width, std::ssize(prompt_of(last)) - 1);
      if (last > first && wider * static_cast<int64_t>(last - first + 1) > most) break;
      width = wider, ++last;
    }
    if (width > 0) {
      const auto count = static_cast<int64_t>(last - first);
      at::Tensor tokens = at::full({count, width}, 0, at::kLong);
      std::vector<int64_t> lengths, rows;
      for (std::size_t i = first; i < last; ++i) {
        const auto length = std::ssize(prompt_of(i)) - 1;
        std::copy_n(prompt_of(i).begin(), length,
                    tokens.mutable_data_ptr<int64_t>() + static_cast<int64_t>(i - first) * width);
        lengths.push_back(length), rows.push_back(started[i].first);
        statistics.prefill_tokens += length;
      }
      model.prefill(tokens.to(model.device()), at::tensor(lengths, at::kLong).to(model.device()),
                    at::tensor(rows, at::kLong).to(model.device()), batch->cache);
    }
    first = last;
  }
}

void Generator::State::fill_free_slots() {
  std::vector<std::pair<int64_t, std::size_t>> started;
  std::vector<DecodeBatch::Start> starts;
  for (int64_t slot = 0; slot < std::ssize(owner) && next < requests->size(); ++slot) {
    if (owner[static_cast<std::size_t>(slot)] != SIZE_MAX) continue;
    const Request& request = (*requests)[next];
    owner[static_cast<std::size_t>(slot)] = next;
    seen[static_cast<std::size_t>(slot)] = 0;
    started.emplace_back(slot, next);
    starts.push_back({slot, request.prompt.back(), std::ssize(request.prompt) - 1, request.max_new_tokens, request.key,
                      request.sampling});
    ++next;
  }
  if (starts.empty()) return;
  prefill(started);
  batch->start(starts);
}

void Generator::State::decode(int64_t steps, int64_t slots) {
  statistics.decode_steps += steps;
  const bool capture = on_cuda() && options.graphs && model.config().moe.experts == 0 && !site::decodings_differ();
  if (!capture) {
    DecodeBatch part = batch->narrowed(slots);
    for (int64_t i = 0; i < steps; ++i) part.step(model);
    return;
  }
  int64_t done = 0;
  if (!graph || captured_under != site::site_listener_changes()) {
    model.ensure_positions(batch->cache.context);
    batch->step(model);  // a real step warms everything up that a capture may not do
    ++done;
    graph.emplace(model.device()).capture([&] { batch->step(model); }, /*warmups=*/0);
    site::count_forwards(site::ForwardKind::kDecode, -1);  // the capture itself ran nothing
    captured_under = site::site_listener_changes();
    ++statistics.captures;
  }
  for (; done < steps; ++done) {
    graph->replay();
    site::count_forwards(site::ForwardKind::kDecode, 1);
  }
}

void Generator::State::take_results(int64_t slots) {
  const at::Tensor counts = batch->count.narrow(0, 0, slots).to(at::kCPU),
                   active = batch->active.narrow(0, 0, slots).to(at::kCPU);
  const at::Tensor tokens = batch->tokens.narrow(0, 0, slots).to(at::kCPU);
  const at::Tensor log_probabilities = batch->log_probabilities.narrow(0, 0, slots).to(at::kCPU);
  for (int64_t slot = 0; slot < slots; ++slot) {
    std::size_t& request = owner[static_cast<std::size_t>(slot)];
    if (request == SIZE_MAX) continue;
    Completion& completion = completions[request];
    const int64_t count = counts.const_data_ptr<int64_t>()[slot];
    std::vector<int64_t> fresh;
    for (int64_t& i = seen[static_cast<std::size_t>(slot)]; i < count; ++i) {
      fresh.push_back(tokens.const_data_ptr<int64_t>()[slot * tokens.size(1) + i]);
      completion.log_probabilities.push_back(log_probabilities.const_data_ptr<float>()[slot * tokens.size(1) + i]);
    }
    completion.tokens.insert(completion.tokens.end(), fresh.begin(), fresh.end());
    if (options.on_tokens && !fresh.empty()) options.on_tokens(request, fresh);
    if (active.const_data_ptr<bool>()[slot]) continue;
    completion.ended = !completion.tokens.empty() &&
                       std::count(options.end_tokens.begin(), options.end_tokens.end(), completion.tokens.back()) > 0;
    if (options.on_finished) options.on_finished(request);
    request = SIZE_MAX;
  }
}

// Ended sequences leave the batch: the last running one takes the first free slot. On CUDA the captured step keeps its
// shape, and an idle row costs almost nothing.
int64_t Generator::State::compact(int64_t slots) {
  if (options.fixed_batch || on_cuda() || next < requests->size()) return slots;
  int64_t free = 0;
  while (true) {
    while (slots > 0 && owner[static_cast<std::size_t>(slots - 1)] == SIZE_MAX) --slots;
    while (free < slots && owner[static_cast<std::size_t>(free)] != SIZE_MAX) ++free;
    if (free >= slots) return slots;
    const std::size_t request = owner[static_cast<std::size_t>(slots - 1)];
    batch->move_slot(slots - 1, free,
                     std::ssize((*requests)[request].prompt) + seen[static_cast<std::size_t>(slots - 1)]);
    std::swap(owner[static_cast<std::size_t>(slots - 1)], owner[static_cast<std::size_t>(free)]);
    std::swap(seen[static_cast<std::size_t>(slots - 1)], seen[static_cast<std::size_t>(free)]);
  }
}

int64_t Generator::State::longest_left() const {
  int64_t longest = 1;
  for (std::size_t slot = 0; slot < owner.size(); ++slot) {
    if (owner[slot] != SIZE_MAX) longest = std::max(longest, (*requests)[owner[slot]].max_new_tokens - seen[slot]);
  }
  return longest;
}

std::vector<Completion> Generator::State::run() {
  const at::NoGradGuard no_gradients;
  prepare();
  completions.assign(requests->size(), {});
  int64_t slots = std::min<int64_t>(batch->cache.rows, std::ssize(*requests));
  owner.assign(static_cast<std::size_t>(slots), SIZE_MAX);
  seen.assign(static_cast<std::size_t>(slots), 0);
  next = 0;
  batch->active.zero_();
  while (true) {
    fill_free_slots();
    slots = compact(slots);
    if (std::all_of(owner.begin(), owner.end(), [](std::size_t request) { return request == SIZE_MAX; })) break;
    decode(on_cuda() ? std::min(kStepsPerLookCuda, longest_left()) : 1, slots);
    take_results(slots);
  }
  return std::move(completions);
}

Generator::Generator(const CausalLm& model, GenerateOptions options)
    : state_(std::make_unique<State>(model, std::move(options))) {
  if (state_->options.slots < 1) throw UsageError("a generator needs at least one slot");
}
Generator::~Generator() = default;

std::vector<Completion> Generator::run(const std::vector<Request>& requests) {
  if (requests.empty()) return {};
  check_requests(requests, state_->model.config());
  state_->requests = &requests;
  return state_->run();
}

const Generator::Statistics& Generator::statistics() const { return state_->statistics; }

}  // namespace faultline::model
