#include "race/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "race/patterns.h"

namespace faultline::race {
namespace {

struct DtypeName {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kDtypes = {DtypeName{"bf16", at::kBFloat16}, DtypeName{"bfloat16", at::kBFloat16},
                                DtypeName{"fp16", at::kHalf},     DtypeName{"float16", at::kHalf},
                                DtypeName{"fp32", at::kFloat},    DtypeName{"float32", at::kFloat}};

template <class Enum, size_t kCount>
Enum by_name(const std::array<const char*, kCount>& names, const Node& node) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const char* n) { return node.as_string() == n; });
  FL_ASSERT(found != names.end());  // the schema has refused other words
  return static_cast<Enum>(found - names.begin());
}

Place place_by_name(const std::string& name) {
  if (name == "all_gather") return Place::kCommOutput;
  if (name == "reduce_scatter" || name == "all_reduce") return Place::kReduce;
  const auto found = std::find_if(kPlaceNames.begin(), kPlaceNames.end(), [&](const char* n) { return name == n; });
  return static_cast<Place>(found - kPlaceNames.begin());
}

std::optional<int64_t> optional_integer(const Node& node, std::string_view key) {
  const Node* value = node.find(key);
  return value == nullptr ? std::nullopt : std::optional<int64_t>(value->as_integer());
}

Injection read_injection(const Node& node) {
  Injection injection;
  injection.target = place_by_name(node.at("target").as_string());
  injection.kind = by_name<FaultType>(kFaultNames, node.at("kind"));
  injection.layer = optional_integer(node, "layer");
  injection.rank = optional_integer(node, "rank");
  injection.iteration = optional_integer(node, "iteration");
  injection.probability = node.at("probability").as_number();
  injection.seed = static_cast<uint64_t>(node.at("seed").as_integer());
  injection.element = optional_integer(node, "element");
  injection.bit = optional_integer(node, "bit");
  injection.delay_ms = node.at("delay_ms").as_number();
  return injection;
}

void check_injection(const Config& config, const Injection& injection, const Node& node) {
  const bool compute = injection.target == Place::kComputeInput || injection.target == Place::kComputeOutput;
  if (compute && !config.simulate_compute) throw node.error("there is no compute record: simulate_compute is off");
  if (injection.target == Place::kH2d && config.h2d_tensor_size == 0) throw node.error("h2d_tensor_size is 0");
  if (injection.target == Place::kH2d && injection.layer) throw node.error("the copy from the host has no layer");
  if (injection.layer && *injection.layer >= config.layers())
    throw node.error(fmt::format("layer {}: there are {}, numbered from 0", *injection.layer, config.layers()));
  if (injection.bit && *injection.bit >= 8 * static_cast<int64_t>(c10::elementSize(config.dtype)))
    throw node.error(fmt::format("bit {}: {} has {} bits", *injection.bit, dtype_name(config.dtype),
                                 8 * c10::elementSize(config.dtype)));
}

void read_optimizer(const Node& node, Config& config) {
  for (const auto& [key, member] : std::initializer_list<std::pair<const char*, double*>>{
           {"optimizer_lr", &config.optimizer_lr},
           {"optimizer_weight_decay", &config.optimizer_weight_decay},
           {"optimizer_eps", &config.optimizer_eps}})
    if (const Node* value = node.find(key)) *member = value->as_number();
  if (const Node* betas = node.find("optimizer_betas"))
    for (size_t i = 0; i < 2; ++i) config.optimizer_betas[i] = betas->at(i).as_number();
}

void read_digest(const Node& node, Config& config) {
  for (size_t key = 0; key < kKeys; ++key)
    config.digest[key] = by_name<DigestTiming>(kTimingNames, node.is_string() ? node : node.at(kKeyNames[key]));
}

int64_t integer_or(const Node& node, std::string_view key, int64_t otherwise) {
  const Node* value = node.find(key);
  return value == nullptr ? otherwise : value->as_integer();
}

void read_sizes(const Node& node, Config& config) {
  for (const auto& [key, member] :
       std::initializer_list<std::pair<const char*, int64_t*>>{{"warmup_iterations", &config.warmup_iterations},
                                                               {"verify_iterations", &config.verify_iterations},
                                                               {"log_interval", &config.log_interval},
                                                               {"h2d_tensor_size", &config.h2d_tensor_size},
                                                               {"alltoall_tensor_size", &config.alltoall_tensor_size},
                                                               {"allreduce_tensor_size", &config.allreduce_tensor_size},
                                                               {"fsdp_shard_size", &config.fsdp_shard_size},
                                                               {"gemm_size", &config.gemm_size},
                                                               {"gemm_layers", &config.gemm_layers},
                                                               {"model_dim", &config.model_dim},
                                                               {"num_layers", &config.num_layers},
                                                               {"num_heads", &config.num_heads},
                                                               {"ffn_size", &config.ffn_size},
                                                               {"seq_len", &config.seq_len},
                                                               {"batch_size", &config.batch_size}})
    *member = integer_or(node, key, *member);
}

void read_switches(const Node& node, Config& config) {
  for (const auto& [key, member] : std::initializer_list<std::pair<const char*, bool*>>{
           {"stop_on_first_corruption", &config.stop_on_first_corruption},
           {"simulate_compute", &config.simulate_compute},
           {"include_backward_compute", &config.include_backward_compute},
           {"real_backward", &config.real_backward},
           {"shared_layer_weights", &config.shared_layer_weights},
           {"deterministic", &config.deterministic},
           {"ddp_bucketed", &config.ddp_bucketed},
           {"reuse_buffers", &config.reuse_buffers},
           {"pin_memory", &config.pin_memory},
           {"h2d_prefetch", &config.h2d_prefetch},
           {"same_stream_mode", &config.same_stream_mode},
           {"consume_gathered", &config.consume_gathered},
           {"patterns", &config.patterns}}) {
    const Node* value = node.find(key);
    *member = value != nullptr && value->as_bool();
  }
}

void check_combinations(const Config& config, const Node& node) {
  if (!config.patterns && !config.digests())
    throw node.error("patterns: false and digest: off leave nothing that could find a corruption; switch one on");
  if (config.compute_type == ComputeType::kTransformer && config.simulate_compute &&
      config.model_dim % config.num_heads != 0)
    throw node.at("model_dim")
        .error(fmt::format("{} does not divide into {} heads", config.model_dim, config.num_heads));
}

}  // namespace

const char* key_name(Key key) { return kKeyNames[static_cast<size_t>(key)]; }
const char* place_name(Place place) { return kPlaceNames[static_cast<size_t>(place)]; }
const char* fault_type_name(FaultType type) { return kFaultNames[static_cast<size_t>(type)]; }

bool Config::digests() const {
  return std::any_of(digest.begin(), digest.end(), [](DigestTiming t) { return t != DigestTiming::kOff; });
}

Config read_config(const Node& node) {
  Config config;
  config.mode = by_name<Mode>(kModeNames, node.at("mode"));
  config.dtype = dtype_by_name(node.at("dtype").as_string());
  config.compute_type = by_name<ComputeType>(kComputeNames, node.at("compute_type"));
  if (const Node* optimizer = node.find("optimizer"))
    config.optimizer = by_name<Optimizer>(kOptimizerNames, *optimizer);
  read_sizes(node, config);
  read_switches(node, config);
  config.seed = static_cast<uint64_t>(integer_or(node, "deterministic_seed", 42));
  if (config.num_heads == 0) config.num_heads = std::max<int64_t>(1, config.model_dim / 128);
  if (config.ffn_size == 0) config.ffn_size = 4 * config.model_dim;
  read_optimizer(node, config);
  read_digest(node.at("digest"), config);
  const Node* checksum = node.find("checksum");
  config.int16_checksum = checksum != nullptr && checksum->as_string() == "int16";
  config.golden = node.at("golden").as_string();
  config.canary = node.at("canary").as_string() == "on";
  config.timeout_seconds = node.at("timeout_seconds").as_number();
  check_combinations(config, node);
  const Node& inject = node.at("inject");
  const Node::List one = inject.is_map() ? Node::List{inject} : inject.items();
  for (const Node& injection : one) {
    config.inject.push_back(read_injection(injection));
    check_injection(config, config.inject.back(), injection);
  }
  return config;
}

Config parse_config(const Node& given) { return read_config(validate(given, config_schema())); }

Node smoke_config() {
  return parse_yaml(
      "{mode: fsdp, warmup_iterations: 2, verify_iterations: 20, log_interval: 10, fsdp_shard_size: 20000, "
      "h2d_tensor_size: 20000, compute_type: transformer, model_dim: 64, num_heads: 4, num_layers: 8, seq_len: 16, "
      "shared_layer_weights: true}",
      "the built-in run");
}

void check_ranks(const Config& config, int ranks) {
  if (ranks > most_exact_ranks(config.dtype))
    throw UsageError(fmt::format("{} ranks: sums in {} are exact for at most {}; use fp32", ranks,
                                 dtype_name(config.dtype), most_exact_ranks(config.dtype)));
  if (config.mode == Mode::kDefault && config.alltoall_tensor_size % ranks != 0)
    throw UsageError(
        fmt::format("alltoall_tensor_size {} does not divide into {} ranks", config.alltoall_tensor_size, ranks));
  if (config.consume_gathered) {
    const int64_t width = config.compute_type == ComputeType::kGemm ? config.gemm_size : config.model_dim;
    if (width * width > config.fsdp_shard_size * ranks)
      throw UsageError(
          fmt::format("consume_gathered needs {} gathered elements (a square of {}), there are {} x {}; "
                      "raise fsdp_shard_size",
                      width * width, width, ranks, config.fsdp_shard_size));
  }
  for (const Injection& injection : config.inject) {
    if (injection.rank && *injection.rank >= ranks)
      throw UsageError(fmt::format("inject.rank: {}: there are {} ranks, numbered from 0", *injection.rank, ranks));
  }
}

bool leave_out_drill(Config& config) {
  const char* wish = std::getenv("FAULTLINE_DRILL");
  if (wish == nullptr || std::string(wish) != "off" || config.inject.empty()) return false;
  config.inject.clear();
  return true;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeName& row : kDtypes) names.emplace_back(row.name);
  return names;
}

at::ScalarType dtype_by_name(const std::string& name) {
  for (const DtypeName& row : kDtypes)
    if (name == row.name) return row.type;
  throw UsageError(fmt::format("'{}' is no dtype; wanted one of {}", name, fmt::join(dtype_names(), ", ")));
}

const char* dtype_name(at::ScalarType type) {
  for (const DtypeName& row : kDtypes)
    if (type == row.type) return row.name;
  return "?";
}

}  // namespace faultline::race
