#include "record/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace faultline::record {
namespace environment_test {

TEST(Environment, KnowsTheNamesOfSecrets) {
  for (const char* name : {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "WANDB_API_KEY", "Password", "PGPASSWORD"})
    EXPECT_TRUE(names_a_secret(name)) << name;
  for (const char* name : {"NCCL_PROTO", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_IB_PKEY", ""})
    EXPECT_FALSE(names_a_secret(name)) << name;
}

TEST(Environment, LeavesKeysOfRecipesAloneThatOnlyLookLikeSecrets) {
  for (const char* key : {"hub.api_key", "token", "--password", "a.secret", "NCCL_TOKEN"})
    EXPECT_TRUE(key_names_a_secret(key)) << key;
  for (const char* key : {"train.max_new_tokens", "keyed_by", "faults.0.where.operator", "tokenizer", "NCCL_IB_PKEY"})
    EXPECT_FALSE(key_names_a_secret(key)) << key;
}

TEST(Environment, RecordsTheVariablesThatCanChangeAResultAndNoSecret) {
  ::setenv("NCCL_PROTO_OF_ENVIRONMENT_TEST", "LL", 1);
  ::setenv("FAULTLINE_TEST_TOKEN", "hunter2", 1);
  ::setenv("UNRELATED_OF_ENVIRONMENT_TEST", "hunter2", 1);
  const Json recorded = recorded_environment();
  EXPECT_EQ(recorded.at("NCCL_PROTO_OF_ENVIRONMENT_TEST"), "LL");
  EXPECT_EQ(recorded.at("FAULTLINE_TEST_TOKEN"), kRedacted);
  EXPECT_FALSE(recorded.contains("UNRELATED_OF_ENVIRONMENT_TEST"));
  EXPECT_EQ(recorded.dump().find("hunter2"), std::string::npos);
  for (const char* name : {"NCCL_PROTO_OF_ENVIRONMENT_TEST", "FAULTLINE_TEST_TOKEN", "UNRELATED_OF_REDACT_TEST"})
    ::unsetenv(name);
}

TEST(Environment, HandsOnWhatAProgramNeedsAndNoSecret) {
  ::setenv("NCCL_PROTO_OF_ENVIRONMENT_TEST", "LL", 1);
  ::setenv("NCCL_KEY_OF_ENVIRONMENT_TEST", "hunter2", 1);
  ::setenv("HF_TOKEN_OF_ENVIRONMENT_TEST", "hunter2", 1);
  ::setenv("UNRELATED_OF_ENVIRONMENT_TEST", "hunter2", 1);
  ::setenv("PATH", "/usr/bin:/bin", 0);
  ::setenv("NVPL_OF_ENVIRONMENT_TEST", "1", 1);
  const auto inherited = inherited_environment();
  EXPECT_EQ(inherited.at("NVPL_OF_ENVIRONMENT_TEST"), "1") << "a BLAS may not work without";
  EXPECT_TRUE(inherited.contains("PATH"));
  EXPECT_EQ(inherited.at("NCCL_PROTO_OF_ENVIRONMENT_TEST"), "LL");
  for (const auto& [name, value] : inherited) EXPECT_EQ(value.find("hunter2"), std::string::npos) << name;
  for (const char* name : {"NCCL_PROTO_OF_ENVIRONMENT_TEST", "NCCL_KEY_OF_ENVIRONMENT_TEST",
                           "HF_TOKEN_OF_ENVIRONMENT_TEST", "UNRELATED_OF_ENVIRONMENT_TEST", "NVPL_OF_ENVIRONMENT_TEST"})
    ::unsetenv(name);
}

TEST(Environment, TakesSecretsOutOfTheCommandLine) {
  EXPECT_EQ(
      recorded_words({"run", "a.yaml", "hub.token=x", "--api-key", "y", "--secret=z", "seed=3"}),
      Json({"run", "a.yaml", "hub.token=(redacted)", "--api-key", "(redacted)", "--secret=(redacted)", "seed=3"}));
  EXPECT_EQ(recorded_words({"train.max_new_tokens=3"}), Json({"train.max_new_tokens=3"}));
}

}  // namespace environment_test
}  // namespace faultline::record
