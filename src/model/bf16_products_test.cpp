#include <gtest/gtest.h>
#include <torch/torch.h>

#include "model/product.h"

namespace faultline::model {
namespace bf16_products_test {

class Bf16Products : public testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    multiply_bf16_in_fp32();
  }
};

torch::Tensor matrix(int64_t rows, int64_t columns) { return torch::randn({rows, columns}).to(torch::kBFloat16); }

torch::Tensor rounded_once(const torch::Tensor& a, const torch::Tensor& b) {
  return at::mm(a.to(torch::kFloat), b.to(torch::kFloat)).to(torch::kBFloat16);
}

TEST_F(Bf16Products, AreFp32ProductsRoundedOnce) {
  const torch::Tensor a = matrix(37, 64), b = matrix(64, 29);
  EXPECT_TRUE(torch::equal(at::mm(a, b), rounded_once(a, b)));
  const torch::Tensor at = matrix(64, 37).t(), bt = matrix(29, 64).t();
  EXPECT_TRUE(torch::equal(at::mm(at, bt), rounded_once(at, bt))) << "transposed";
  const torch::Tensor wide = matrix(37, 128).narrow(1, 32, 64);
  EXPECT_TRUE(torch::allclose(at::mm(wide, b).to(torch::kFloat), rounded_once(wide, b).to(torch::kFloat), 1e-2, 1e-2))
      << "a part of a matrix";
}

TEST_F(Bf16Products, OfManyRowsAreMadeInBlocks) {
  const torch::Tensor a = matrix(300, 16), b = matrix(16, 50000);  // more than kBlock elements
  const torch::Tensor y = at::mm(a, b);
  for (const int64_t row : {0, 82, 83, 84, 166, 299})
    EXPECT_TRUE(torch::allclose(y[row].to(torch::kFloat), rounded_once(a.narrow(0, row, 1), b)[0].to(torch::kFloat),
                                1e-2, 1e-3))
        << row;
}

TEST_F(Bf16Products, TakeABias) {
  const torch::Tensor a = matrix(5, 64), w = matrix(29, 64), bias = matrix(1, 29)[0];
  const torch::Tensor expected =
      at::addmm(bias.to(torch::kFloat), a.to(torch::kFloat), w.to(torch::kFloat).t()).to(torch::kBFloat16);
  EXPECT_TRUE(torch::equal(at::linear(a, w, bias), expected));
}

TEST_F(Bf16Products, OfNothingAreEmptyOrZero) {
  EXPECT_EQ(at::mm(matrix(0, 4), matrix(4, 3)).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(at::mm(matrix(2, 4), matrix(4, 0)).sizes(), (std::vector<int64_t>{2, 0}));
  EXPECT_TRUE(torch::equal(at::mm(matrix(2, 0), matrix(0, 3)), torch::zeros({2, 3}, torch::kBFloat16)));
}

TEST_F(Bf16Products, OtherTypesAndShapesAreTorchs) {
  const torch::Tensor a = torch::randn({3, 4}), b = torch::randn({4, 5});
  EXPECT_TRUE(torch::allclose(at::mm(a, b), (a.unsqueeze(2) * b.unsqueeze(0)).sum(1), 1e-5, 1e-6));
  EXPECT_THROW(at::mm(matrix(3, 4), matrix(5, 6)), c10::Error);
  EXPECT_THROW(at::mm(matrix(3, 4), b), c10::Error) << "two types";
}

TEST_F(Bf16Products, HaveBothGradients) {
  const torch::Tensor x = matrix(7, 64).requires_grad_(), w = matrix(29, 64).requires_grad_(), g = matrix(7, 29);
  at::linear(x, w).backward(g);
  EXPECT_TRUE(torch::equal(x.grad(), rounded_once(g, w.detach())));
  EXPECT_TRUE(torch::equal(w.grad(), rounded_once(g.t(), x.detach())));
}

}  // namespace bf16_products_test
}  // namespace faultline::model
