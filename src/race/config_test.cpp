// The configuration: defaults as documented, one table of dtypes, and no field that does nothing.
#include "race/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "race/patterns.h"
#include "race/run_processes.h"

namespace faultline::race {
namespace config_test {

Config parsed(const std::string& yaml) { return parse_config(parse_yaml(yaml, "test.yaml")); }

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refused(const std::string& yaml) {
  return refusal([&] { (void)parsed(yaml); });
}

TEST(RaceConfig, HasTheDocumentedDefaults) {
  const Config config = parsed("{}");
  EXPECT_EQ(config.mode, Mode::kDefault);
  EXPECT_EQ(config.warmup_iterations, 100);
  EXPECT_EQ(config.verify_iterations, 10000);
  EXPECT_EQ(config.gemm_size, 5120);
  EXPECT_EQ(config.layers(), 26);
  EXPECT_EQ(config.dtype, at::kBFloat16);
  EXPECT_TRUE(config.stop_on_first_corruption && config.canary && config.patterns && config.digests());
  const Config block = parsed("{mode: fsdp, compute_type: transformer}");
  EXPECT_EQ(block.num_heads, 16);
  EXPECT_EQ(block.ffn_size, 4 * 2048);
}

TEST(RaceConfig, OneTableOfDtypesWithItsAliases) {  // lesson 56
  for (const std::string& name : dtype_names())
    EXPECT_EQ(parsed("{dtype: " + name + "}").dtype, dtype_by_name(name)) << name;
  EXPECT_EQ(dtype_by_name("bfloat16"), at::kBFloat16);
  EXPECT_EQ(dtype_by_name("float16"), at::kHalf);
  EXPECT_NE(refused("{dtype: fp8}").find("dtype"), std::string::npos);
}

TEST(RaceConfig, RefusesUnknownKeysWithTheNearestName) {  // lesson 49
  EXPECT_NE(refused("{verfy_iterations: 3}").find("did you mean 'verify_iterations'"), std::string::npos);
}

TEST(RaceConfig, RefusesWhatTheModeDoesNotRead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{mode: ddp, fsdp_shard_size: 5}", "'fsdp_shard_size' is not read here: it needs mode: fsdp"},
      {"{mode: fsdp, alltoall_tensor_size: 4}", "alltoall_tensor_size"},
      {"{mode: fsdp, allreduce_tensor_size: 4}", "allreduce_tensor_size"},
      {"{mode: fsdp, ddp_bucketed: true}", "ddp_bucketed"},
      {"{mode: default, shared_layer_weights: true}", "shared_layer_weights"},
      {"{mode: default, optimizer: sgd}", "optimizer"},
      {"{mode: ddp, consume_gathered: true}", "consume_gathered"},
      {"{model_dim: 64}", "model_dim"},
      {"{compute_type: transformer, gemm_size: 64}", "gemm_size"},
      {"{compute_type: transformer_gemm, num_heads: 2}", "num_heads"},
      {"{simulate_compute: false, gemm_size: 64}", "gemm_size"},
      {"{mode: fsdp, real_backward: true}", "real_backward"},
      {"{deterministic_seed: 3}", "deterministic: true"},
  };
  for (const auto& [yaml, says] : cases)
    EXPECT_NE(refused(yaml).find(says), std::string::npos) << yaml << ": " << refused(yaml);
}

TEST(RaceConfig, RefusesInjectionsThatCannotStrike) {
  EXPECT_NE(refused("{simulate_compute: false, inject: {target: compute_output, kind: zero}}")
                .find("simulate_compute is off"),
            std::string::npos);
  EXPECT_NE(refused("{gemm_layers: 4, inject: {kind: zero, layer: 4}}").find("numbered from 0"), std::string::npos);
  EXPECT_NE(refused("{inject: {kind: bitflip, bit: 16}}").find("bf16 has 16 bits"), std::string::npos);
  EXPECT_NE(refused("{inject: {kind: melt}}").find("inject"), std::string::npos);
  EXPECT_THROW(check_ranks(parsed("{inject: {kind: zero, rank: 4}}"), 4), UsageError);
}

TEST(RaceConfig, RefusesARunThatCouldFindNothing) {
  EXPECT_NE(refused("{patterns: false, digest: off}").find("nothing that could find"), std::string::npos);
}

TEST(RaceConfig, RefusesRankCountsThatAreNotExact) {
  for (const char* type : {"bf16", "fp16"}) {
    const Config config = parsed(fmt::format("{{dtype: {}, mode: fsdp}}", type));
    const int most = most_exact_ranks(config.dtype);
    EXPECT_NO_THROW(check_ranks(config, most));
    try {
      check_ranks(config, most + 1);
      ADD_FAILURE() << most + 1 << " ranks in " << type;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("are exact for at most"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(most_exact_ranks(at::kBFloat16), 256);
  EXPECT_NO_THROW(check_ranks(parsed("{dtype: bf16, alltoall_tensor_size: 256}"), 256));
  EXPECT_THROW(check_ranks(parsed("{alltoall_tensor_size: 10}"), 4), UsageError);
  EXPECT_THROW(check_ranks(parsed("{mode: fsdp, consume_gathered: true, fsdp_shard_size: 10}"), 4), UsageError);
}

TEST(RaceConfig, TakesDigestsByKey) {
  const Config config = parsed("{digest: {comm_input: off, comm_output: after}}");
  EXPECT_EQ(config.digest_of(Key::kCommInput), DigestTiming::kOff);
  EXPECT_EQ(config.digest_of(Key::kCommOutput), DigestTiming::kAfter);
  EXPECT_EQ(config.digest_of(Key::kComputeOutput), DigestTiming::kBefore);
}

TEST(Transport, NcclCarriesGpuTensorsAndChoosesTheGpuItself) {
  EXPECT_NE(refusal([] { check_transport("nccl", at::kCPU, {}); }).find("use --device cuda"), std::string::npos);
  EXPECT_NE(refusal([] { check_transport("nccl", at::Device(at::kCUDA, 1), {}); }).find("without an index"),
            std::string::npos);
  check_transport("nccl", at::Device(at::kCUDA, 0), {});
  const PythonRanks python{"gloo", "cpu", {"my_backend"}, ""};
  check_transport("torch", at::kCPU, python);
  EXPECT_NE(refusal([] { check_transport("torch", at::kCPU, {}); }).find("--backend NAME"), std::string::npos);
  EXPECT_NE(refusal([&] { check_transport("gloo", at::kCPU, python); }).find("give --transport torch"),
            std::string::npos);
  for (const PythonRanks& wrong : {PythonRanks{"", "cpu", {}, ""}, PythonRanks{"gl oo", "cpu", {}, ""},
                                   PythonRanks{"gloo", "-c", {}, ""}, PythonRanks{"gloo", "cpu", {"a;b"}, ""}})
    EXPECT_NE(refusal([&] { check_transport("torch", at::kCPU, wrong); }), "") << wrong.backend << wrong.device;
}

TEST(Transport, NcclWantsToKnowTheLocalRankOfAJoinedProcess) {
  cluster::Membership one;  // as srun leaves it without our script
  RunOptions options;
  options.device = at::Device(at::kCUDA, 0);
  const Node node = validate(smoke_config(), config_schema());
  EXPECT_NE(refusal([&] { (void)run_joined(one, node, read_config(node), options); }).find("$SLURM_LOCALID"),
            std::string::npos);
}

}  // namespace config_test
}  // namespace faultline::race
