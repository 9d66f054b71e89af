// The fields of the configuration: type, default, which configurations read it, and what it needs to be read.
#include <fmt/format.h>

#include "race/config.h"

namespace faultline::race {
namespace {

template <size_t kCount>
std::vector<std::string> words(const std::array<const char*, kCount>& names) {
  return {names.begin(), names.end()};
}

bool is(const Node& config, std::string_view key, std::string_view value) {
  const Node* node = config.find(key);
  return node != nullptr && node->is_string() && node->as_string() == value;
}
bool on(const Node& config, std::string_view key) {
  const Node* node = config.find(key);
  return node != nullptr && node->is_boolean() && node->as_bool();
}

using Reads = bool (*)(const Node& config);
bool always(const Node&) { return true; }
bool fsdp(const Node& c) { return is(c, "mode", "fsdp"); }
bool ddp(const Node& c) { return is(c, "mode", "ddp"); }
bool plain(const Node& c) { return is(c, "mode", "default"); }
bool trains(const Node& c) { return fsdp(c) || ddp(c); }
bool reduces(const Node& c) { return ddp(c) || plain(c); }
bool gemm(const Node& c) { return is(c, "compute_type", "gemm"); }
bool computes(const Node& c) { return on(c, "simulate_compute"); }
bool gemm_runs(const Node& c) { return gemm(c) && computes(c); }
bool layered(const Node& c) { return !gemm(c); }
bool transformer_runs(const Node& c) { return computes(c) && layered(c); }
bool block_runs(const Node& c) { return computes(c) && is(c, "compute_type", "transformer"); }
bool trains_and_computes(const Node& c) { return trains(c) && computes(c); }
bool trains_block(const Node& c) { return trains(c) && block_runs(c); }
bool digests(const Node& c) { return !is(c, "digest", "off"); }
bool adamw(const Node& c) { return is(c, "optimizer", "adamw"); }
bool steps(const Node& c) { return is(c, "optimizer", "sgd") || adamw(c); }
bool fsdp_computes(const Node& c) { return fsdp(c) && computes(c); }
bool deterministic(const Node& c) { return on(c, "deterministic"); }

struct FieldRow {
  const char* name;
  Schema schema;
  Node default_value;
  Reads reads;
  const char* needs;  // what the field needs to be read, for the complaint
  const char* doc;
};

Schema positive(int64_t max = int64_t{1} << 31) { return Schema::integer({.min = 1, .max = max}); }
Schema count() { return Schema::integer({.min = 0, .max = int64_t{1} << 40}); }

Schema injection_schema() {
  std::vector<std::string> targets = words(kPlaceNames);
  for (const char* alias : {"all_gather", "reduce_scatter", "all_reduce"}) targets.emplace_back(alias);
  return Schema::map()
      .field("target", Schema::choice(targets),
             {.default_value = Node("comm_output"), .doc = "where the fault strikes"})
      .field("kind", Schema::choice(words(kFaultNames)), {.required = true, .doc = "what happens"})
      .field("layer", count(), {.doc = "absent: any layer"})
      .field("rank", count(), {.doc = "absent: any rank"})
      .field("iteration", count(), {.doc = "absent: any iteration"})
      .field("probability", Schema::number({.min = 0, .max = 1}), {.default_value = Node(1.0), .doc = "of each chance"})
      .field("seed", count(), {.default_value = Node(0), .doc = "of the draws"})
      .field("element", count(), {.doc = "absent: drawn"})
      .field("bit", Schema::integer({.min = 0, .max = 31}), {.doc = "absent: drawn"})
      .field("delay_ms", Schema::number({.min = 0, .max = 1e7}), {.default_value = Node(300.0), .doc = "kind delay"});
}

Schema digest_schema() {
  Schema by_key = Schema::map();
  for (const char* key : kKeyNames)
    by_key = by_key.field(key, Schema::choice(words(kTimingNames)), {.default_value = Node("before")});
  return Schema::any_of({Schema::choice(words(kTimingNames)), by_key})
      .described_as("before, after, off, or a map of these by key");
}

std::vector<FieldRow> field_rows() {
  return {
      {"mode", Schema::choice(words(kModeNames)), Node("default"), always, "", "fsdp, ddp, or all-to-all + all-reduce"},
      {"warmup_iterations", count(), Node(100), always, "", "iterations that are not verified"},
      {"verify_iterations", positive(int64_t{1} << 40), Node(10000), always, "", "iterations that are"},
      {"stop_on_first_corruption", Schema::boolean(), Node(true), always, "", "all ranks stop together"},
      {"log_interval", positive(), Node(100), always, "", "iterations between progress lines"},
      {"h2d_tensor_size", count(), Node(1000000), always, "", "elements copied from the host each iteration; 0: none"},
      {"alltoall_tensor_size", positive(), Node(100000), plain, "mode: default", "elements each rank sends in all"},
      {"allreduce_tensor_size", positive(), Node(100000), reduces, "mode: default or ddp", "elements a layer"},
      {"fsdp_shard_size", positive(), Node(100000), fsdp, "mode: fsdp", "elements of a rank's shard"},
      {"dtype", Schema::choice(dtype_names()), Node("bf16"), always, "", "of all buffers"},
      {"simulate_compute", Schema::boolean(), Node(true), always, "", "off: communication alone"},
      {"compute_type", Schema::choice(words(kComputeNames)), Node("gemm"), always, "", "also decides what a layer is"},
      {"gemm_size", positive(1 << 15), Node(5120), gemm_runs, "compute_type: gemm and simulate_compute", "square"},
      {"gemm_layers", positive(4096), Node(26), gemm, "compute_type: gemm", "layers"},
      {"model_dim", positive(1 << 16), Node(2048), transformer_runs, "a transformer compute_type and simulate_compute",
       "width"},
      {"num_layers", positive(4096), Node(4), layered, "a transformer compute_type", "layers"},
      {"num_heads", count(), Node(0), block_runs, "compute_type: transformer and simulate_compute",
       "0: model_dim / 128"},
      {"ffn_size", count(), Node(0), block_runs, "compute_type: transformer and simulate_compute", "0: 4 * model_dim"},
      {"seq_len", positive(1 << 20), Node(512), transformer_runs, "a transformer compute_type and simulate_compute",
       "tokens"},
      {"batch_size", positive(1 << 16), Node(1), transformer_runs, "a transformer compute_type and simulate_compute",
       "sequences"},
      {"include_backward_compute", Schema::boolean(), Node(true), trains_and_computes,
       "mode: fsdp or ddp and simulate_compute", "compute on the way down too"},
      {"real_backward", Schema::boolean(), Node(false), trains_block, "mode: fsdp or ddp and compute_type: transformer",
       "autograd instead of a second forward"},
      {"shared_layer_weights", Schema::boolean(), Node(false), trains, "mode: fsdp or ddp",
       "every layer must then give the same bits"},
      {"optimizer", Schema::choice(words(kOptimizerNames)), Node("none"), trains, "mode: fsdp or ddp",
       "a step on a shard, done twice and compared"},
      {"optimizer_lr", Schema::number({.min = 0, .max = 1e3}), Node(1e-3), steps, "optimizer: sgd or adamw",
       "learning rate"},
      {"optimizer_weight_decay", Schema::number({.min = 0, .max = 1}), Node(0.01), adamw, "optimizer: adamw",
       "of adamw"},
      {"optimizer_betas", Schema::list(Schema::number({.min = 0, .max = 1}), {.min = 2, .max = 2}),
       Node::list({Node(0.9), Node(0.999)}), adamw, "optimizer: adamw", "of adamw"},
      {"optimizer_eps", Schema::number({.min = 0, .max = 1}), Node(1e-8), adamw, "optimizer: adamw", "of adamw"},
      {"deterministic", Schema::boolean(), Node(false), always, "",
       "torch's deterministic algorithms and a fixed seed"},
      {"deterministic_seed", count(), Node(42), deterministic, "deterministic: true", "in place of --seed"},
      {"ddp_bucketed", Schema::boolean(), Node(false), ddp, "mode: ddp", "all layers' gradients in 25 MiB buckets"},
      {"reuse_buffers", Schema::boolean(), Node(true), always, "", "off: fresh memory each iteration"},
      {"pin_memory", Schema::boolean(), Node(true), always, "", "of the host copy, on a GPU"},
      {"h2d_prefetch", Schema::boolean(), Node(false), always, "", "copy the next iteration's input during this one"},
      {"same_stream_mode", Schema::boolean(), Node(false), always, "", "on: a collective never overlaps compute"},
      {"consume_gathered", Schema::boolean(), Node(false), fsdp_computes, "mode: fsdp and simulate_compute",
       "compute with the gathered parameters"},
      {"patterns", Schema::boolean(), Node(true), always, "", "compare every element with what it must be"},
      {"digest", digest_schema(), Node("before"), always, "", "of the four records, before or after they are consumed"},
      {"checksum", Schema::choice({"digest", "int16"}), Node("digest"), digests, "a digest that is not off",
       "what stands for a record: the digest, or the sum of its bytes as int16, which misses exchanges"},
      {"golden", Schema::string(), Node(""), always, "", "file of digests to compare with; made by --write-golden"},
      {"canary", Schema::choice({"on", "off"}), Node("on"), always, "", "first plant a fault that must be found"},
      {"timeout_seconds", Schema::number({.min = 0.1, .max = 86400}), Node(60.0), always, "", "of a collective"},
      {"inject", Schema::any_of({injection_schema(), Schema::list(injection_schema())}), Node::list(), always, "",
       "faults to plant"},
  };
}

// A field that the rest of the configuration makes useless was written by somebody: defaults are left out then.
std::string complain_unread(const Node& config) {
  for (const FieldRow& row : field_rows()) {
    if (config.find(row.name) == nullptr || row.reads(config)) continue;
    return fmt::format("'{}' is not read here: it needs {}; remove it", row.name, row.needs);
  }
  return "";
}

}  // namespace

Schema config_schema() {
  Schema schema = Schema::map();
  for (const FieldRow& row : field_rows())
    schema = schema.field(row.name, row.schema,
                          {.default_value = row.default_value, .doc = row.doc, .default_if = row.reads});
  return schema.check(complain_unread);
}

void register_race_section() {
  SectionRegistry::global().add("race", config_schema(), {.doc = "known bytes through collectives; `faultline race`"});
}

}  // namespace faultline::race
