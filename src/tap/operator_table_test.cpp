// The table of families: what is built in, what a recipe adds, and what it refuses.
#include "tap/operator_table.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace faultline::tap {
namespace operator_table_test {

// A recipe's table for as long as it lives.
struct Using {
  explicit Using(const OperatorNames& names) { use_operators(names); }
  ~Using() { use_operators({}); }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;
};

TEST(OperatorTable, KnowsTheNpusOperatorsByTheirNames) {
  EXPECT_EQ(family_of("npu::npu_rms_norm"), "norm");
  EXPECT_EQ(family_of("npu::npu_add_rms_norm"), "norm");
  EXPECT_EQ(family_of("npu::npu_swiglu_backward"), "activation");
  EXPECT_EQ(family_of("npu::npu_fusion_attention_grad"), "attention");
  EXPECT_EQ(family_of("npu::npu_grouped_matmul"), "matmul");
  EXPECT_EQ(family_of("atb::_npu_paged_attention"), "attention");
  EXPECT_EQ(family_of("npu::npu_format_cast"), "");
}

TEST(OperatorTable, AddsWhatARecipeSaysBeforeWhatIsBuiltIn) {
  EXPECT_EQ(family_of("mine::norm"), "");
  const Using mine(OperatorNames{{"norm", {"mine::*"}}, {"attention", {"npu::npu_rms_norm"}}});
  EXPECT_EQ(family_of("mine::norm"), "norm");
  EXPECT_TRUE(is_of_family(*family_named("all_ops"), "mine::norm"));
  EXPECT_EQ(family_of("npu::npu_rms_norm"), "attention");  // the user's word
  EXPECT_FALSE(is_of_family(*family_named("norm"), "npu::npu_rms_norm"));
  EXPECT_EQ(family_of("aten::mm"), "matmul");
}

TEST(OperatorTable, IsThatOfOnePlanAndGoesWithIt) {
  {
    const Using mine(OperatorNames{{"norm", {"mine::*"}}});
  }
  EXPECT_EQ(family_of("mine::norm"), "");
}

TEST(OperatorTable, RefusesAnOperatorInTwoFamilies) {
  const Node section = parse_yaml("{norm: ['mine::x'], matmul: ['mine::x']}", "test");
  EXPECT_THROW(read_operators(section), UsageError);
  EXPECT_TRUE(read_operators(Node()).empty());
}

}  // namespace operator_table_test
}  // namespace faultline::tap
