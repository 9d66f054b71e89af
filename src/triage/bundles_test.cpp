#include "triage/bundles.h"

#include <gtest/gtest.h>

#include "base/config.h"
#include "base/error.h"

namespace faultline::triage {
namespace {

std::string refusal(const std::string& variable, const std::string& value) {
  try {
    (void)validate(Node::map({{variable, Node(value), {}}}), environment_schema());
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Bundles, SetSettingsOfTheRuntimeAndNothingElse) {
  for (const char* name : {"NCCL_PROTO", "RCCL_X", "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "FAULTLINE_DRILL",
                           "UCX_TLS", "NCCL_IB_PKEY"})
    EXPECT_EQ(refusal(name, "1"), "") << name;
  for (const char* name : {"LD_PRELOAD", "PATH", "PYTHONPATH", "HOME", "GCONV_PATH", "BASH_ENV"})
    EXPECT_NE(refusal(name, "1").find("must not choose code"), std::string::npos) << name;
  EXPECT_NE(refusal("RANK", "1").find("belongs to the launcher"), std::string::npos);
}

TEST(Bundles, LoadNoLibrary) {
  EXPECT_NE(refusal("NCCL_NET_PLUGIN", "/tmp/x.so").find("would load code"), std::string::npos);
  EXPECT_EQ(refusal("NCCL_NET_PLUGIN", "none"), "");
  EXPECT_NE(refusal("CUDA_INJECTION64_PATH", "x").find("would load code"), std::string::npos);
  EXPECT_NE(refusal("NCCL_CONF_FILE", "x").find("would load code"), std::string::npos);
}

TEST(Bundles, HoldNoSecret) {
  EXPECT_NE(refusal("NCCL_API_KEY", "x").find("secret"), std::string::npos);
  EXPECT_NE(refusal("CUDA_TOKEN", "x").find("secret"), std::string::npos);
}

}  // namespace
}  // namespace faultline::triage
