// What asking for NCCL says where it cannot be had. Its collectives are tested where there is a GPU:
// tests/race_cuda_test.py.
#include "cluster/process_groups.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "base/machine.h"

namespace faultline::cluster {
namespace nccl_test {

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "not refused";
}

bool says(const std::string& sentence, const std::string& part) { return sentence.find(part) != std::string::npos; }

TEST(Nccl, SaysThatItsModuleWasNotBuilt) {
  const std::string sentence = refusal([] { check_nccl_module("/nowhere/libfaultline_nccl.so"); });
  EXPECT_TRUE(says(sentence, "libfaultline_nccl.so was not built") && says(sentence, "--transport threads"))
      << sentence;
}

TEST(Nccl, GivesARankTheGpuOfItsLocalRankAndRefusesToShareOne) {
  EXPECT_EQ(gpu_of_rank(2, 4), c10::Device(c10::kCUDA, 2));
  const std::string sentence = refusal([] { (void)gpu_of_rank(2, 2); });
  EXPECT_TRUE(says(sentence, "has 2") && says(sentence, "local rank 2") && says(sentence, "at most 2 ranks"))
      << sentence;
}

// The module links torch's CUDA half: that it loads, and reaches the constructor, can be seen without a GPU.
TEST(Nccl, TheModuleLoadsAndMakesAGroupOrSaysThatThereIsNoGpu) {
  if (!std::filesystem::exists(library_folder() / "libfaultline_nccl.so")) GTEST_SKIP() << "built without NCCL";
  load_nccl();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  try {
    const auto group = make_nccl(store, "test", 0, 1, std::chrono::seconds(5));
    EXPECT_EQ(group->getBackendName(), "nccl");
    group->shutdown();
  } catch (const c10::Error& error) {
    EXPECT_TRUE(says(error.what(), "no GPUs found")) << error.what();
  }
}

}  // namespace nccl_test
}  // namespace faultline::cluster
