#include "triage/bundles.h"

#include <gtest/gtest.h>

#include "base/config/config.h"
#include "base/error.h"
#include "triage/variables.h"

namespace faultline::triage {
namespace bundles_test {

std::string refusal(const std::string& variable, const std::string& value) {
  try {
    (void)validate(Node::map({{variable, Node(value), {}}}), environment_schema());
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Bundles, SetEverySettingThatTheRecipeNames) {
  for (const char* name :
       {"NCCL_PROTO", "RCCL_X", "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "FAULTLINE_DRILL", "UCX_TLS", "NCCL_IB_PKEY",
        "GPU_MAX_HW_QUEUES", "HSA_ENABLE_SDMA", "ROC_AQL_QUEUE_SIZE", "MY_DEBUG_FLAG", "DISABLE_TF32", "amp_dtype"})
    EXPECT_EQ(refusal(name, "1"), "") << name;
  EXPECT_EQ(refusal("MY_MODE", "fast,again:2"), "");
}

TEST(Bundles, ChooseNoCode) {
  for (const char* name :
       {"LD_PRELOAD",        "LD_AUDIT",    "PATH",       "PYTHONPATH",  "PYTHONSTARTUP", "HOME",
        "GCONV_PATH",        "BASH_ENV",    "ENV",        "IFS",         "NODE_OPTIONS",  "PERL5OPT",
        "JAVA_TOOL_OPTIONS", "CC",          "GIT_EDITOR", "MY_PAGER",    "LOCPATH",       "TMPDIR",
        "XLA_FLAGS",         "SSLKEYFILE",  "ld_preload", "python_path", "TORCH_TRACE",   "GLIBC_TUNABLES",
        "MALLOC_TRACE",      "ASAN_OPTIONS"})
    EXPECT_NE(refusal(name, "1"), "") << name;
  EXPECT_NE(refusal("LD_PRELOAD", "x").find("must not choose code"), std::string::npos);
}

TEST(Bundles, BelongToNoLauncherAndChooseNoMachine) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOBID",
                           "PMI_RANK", "OMPI_COMM_WORLD_RANK"}) {
    EXPECT_NE(refusal(name, "1").find("belongs to the launcher"), std::string::npos) << name;
    EXPECT_TRUE(is_launcher_variable(name)) << name;
  }
  for (const char* name : {"RAY_ADDRESS", "https_proxy", "HF_ENDPOINT", "INDEX_URL"})
    EXPECT_NE(refusal(name, "x").find("choose a machine"), std::string::npos) << name;
}

TEST(Bundles, HoldPlainSettingsWhereTheRuntimeIsNotKnown) {
  for (const char* value : {"a b", "-Mevil", "/etc/passwd", "$(reboot)", "a\nb", "~x"})
    EXPECT_NE(refusal("MY_MODE", value), "") << value;
  EXPECT_NE(refusal("MY_MODE", "a b").find("no plain setting"), std::string::npos);
}

TEST(Bundles, LoadNoLibrary) {
  EXPECT_NE(refusal("NCCL_NET_PLUGIN", "/tmp/x.so").find("would load code"), std::string::npos);
  EXPECT_EQ(refusal("NCCL_NET_PLUGIN", "none"), "");
  EXPECT_NE(refusal("CUDA_INJECTION64_PATH", "x").find("would load code"), std::string::npos);
  EXPECT_NE(refusal("NCCL_CONF_FILE", "x").find("would load code"), std::string::npos);
  EXPECT_NE(refusal("NCCL_NET_PLUGIN", "evil").find("would load code"), std::string::npos);
  for (const char* name : {"NCCL_CUDA_PATH", "HSA_TOOLS_LIB", "FI_PROVIDER_PATH", "UCX_MODULE_DIR",
                           "OMP_TOOL_LIBRARIES", "UCX_GDB_COMMAND", "HIP_PATH"})
    EXPECT_NE(refusal(name, "evil").find("would load code"), std::string::npos) << name;
}

TEST(Bundles, WriteNoFile) {
  for (const char* name : {"NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "UCX_LOG_FILE", "CUDA_COREDUMP_FILE",
                           "CUDA_CACHE_PATH", "CUDA_MPS_LOG_DIRECTORY", "UCX_STATS_DEST", "TORCH_LOGS_OUT"})
    EXPECT_NE(refusal(name, "x").find("write files"), std::string::npos) << name;
  EXPECT_NE(refusal("NCCL_OF_A_LATER_VERSION", "/home/u/.bashrc").find("write files"), std::string::npos);
}

TEST(Bundles, ChooseSettingsOfOursAndNotOurPrograms) {
  for (const char* name : {"FAULTLINE_LIBRARY", "FAULTLINE_PYTHON", "FAULTLINE_EVIDENCE", "FAULTLINE_RECIPE"})
    EXPECT_NE(refusal(name, "x").find("FAULTLINE_DRILL, FAULTLINE_CPU_ISA"), std::string::npos) << name;
}

TEST(Bundles, KeepSettingsWhoseNamesOnlySoundLikeFiles) {
  EXPECT_EQ(refusal("CUDA_MODULE_LOADING", "EAGER"), "");
  EXPECT_EQ(refusal("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"), "");
  EXPECT_EQ(refusal("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), "");
  EXPECT_EQ(refusal("NCCL_PROFILER_PLUGIN", "none"), "");
}

TEST(Bundles, HoldNoSecret) {
  EXPECT_NE(refusal("NCCL_API_KEY", "x").find("secret"), std::string::npos);
  for (const char* name : {"CUDA_TOKEN", "NCCL_MYPASSWORD", "NCCL_AUTHTOKEN", "NCCL_ApiKey", "FAULTLINE_TEST_TOKEN"})
    EXPECT_NE(refusal(name, "x").find("secret"), std::string::npos) << name;
}

}  // namespace bundles_test
}  // namespace faultline::triage
