// CPU and CUDA give the same bits: data and ledger, for every case of the table, random ones included. Skipped where
// there is no GPU.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "numeric/apply.h"
#include "numeric/fault_cases.h"
#include "numeric/ledger.h"

namespace faultline::numeric {
namespace cuda_test {

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    if (!has_cuda_kernels() || library == nullptr || !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
};

// Normal data with zeros of both signs, infinities, NaNs of odd spelling, huge and subnormal values strewn in.
at::Tensor hostile(at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  at::Tensor x = at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)).to(dtype);
  at::Tensor flat = x.view({-1});
  const double values[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, 1e-40, -1e-42, 65504.0, 6.1e-5};
  for (int64_t i = 0; i < flat.numel(); i += 97) flat[i].fill_(values[(i / 97) % 10]);
  return x;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_equal_on_both(const std::string& text, const at::Tensor& x) {
  SCOPED_TRACE(text + " on " + c10::toString(x.scalar_type()) + " " + c10::str(x.sizes()));
  const Rule rule = parse_rule(text, RuleUse::kOnTensor);
  at::Tensor host = x.clone(), device = x.to(at::kCUDA);
  at::Tensor host_ledger = make_ledger(at::kCPU), device_ledger = make_ledger(device.device());
  const Identity identity{42, "layers.3.mlp.down_proj", 1};
  try {
    for (uint32_t call = 0; call < 2; ++call) apply_(host, rule, identity, {5, call, {}}, {{}, host_ledger, {}});
  } catch (const UsageError&) {
    EXPECT_THROW(apply_(device, rule, identity, {5, 0, {}}, {{}, device_ledger, {}}), UsageError);
    return;
  }
  for (uint32_t call = 0; call < 2; ++call) apply_(device, rule, identity, {5, call, {}}, {{}, device_ledger, {}});
  EXPECT_TRUE(same_bytes(host, device));
  EXPECT_TRUE(same_bytes(host_ledger, device_ledger)) << host_ledger << device_ledger.cpu();
}

std::vector<std::string> all_cases() {
  std::vector<std::string> all = fault_cases();
  all.insert(all.end(), format_cases().begin(), format_cases().end());
  return all;
}

TEST_F(Cuda, GivesTheBitsOfTheCpuForEveryCaseDtypeAndShape) {
  const std::vector<std::vector<int64_t>> shapes = {{0},        {0, 5},    {1},        {7},       {8},
                                                    {3, 5, 33}, {64, 128}, {130, 257}, {5, 1000}, {1, 70000}};
  for (const std::string& text : all_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto& shape : shapes) expect_equal_on_both(text, hostile(shape, dtype));
    }
  }
}

TEST_F(Cuda, GivesTheBitsOfTheCpuOnTenMillionElements) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Generator generator = at::detail::createCPUGenerator(3);
    const at::Tensor x = at::randn({4001, 2504}, generator, at::TensorOptions().dtype(at::kFloat)).to(dtype);
    for (const std::string& text : all_cases()) expect_equal_on_both(text, x);
  }
}

TEST_F(Cuda, GivesTheBitsOfTheCpuForStridedTensors) {
  for (const std::string& text : all_cases()) {
    expect_equal_on_both(text, hostile({40, 96}, at::kBFloat16).t());
    expect_equal_on_both(text, hostile({40, 96}, at::kFloat).slice(1, 1, 90, 3));
  }
}

TEST_F(Cuda, DigestAndChecksumEqualTheCpus) {
  for (const int64_t size : {0, 1, 2, 3, 17, 4096, 8191, 8192, 8193, 100003, 5000011}) {
    const at::Tensor x = at::randint(-128, 128, {size}, at::kChar);
    EXPECT_EQ(digest(x).item<int64_t>(), digest(x.to(at::kCUDA)).item<int64_t>()) << size;
    EXPECT_EQ(checksum(x).item<int64_t>(), checksum(x.to(at::kCUDA)).item<int64_t>()) << size;
    const at::Tensor half = at::randn({size}).to(at::kBFloat16);
    EXPECT_EQ(checksum(half).item<int64_t>(), checksum(half.to(at::kCUDA)).item<int64_t>()) << size;
    const at::Tensor tail = half.slice(0, 1);  // not aligned to 16 bytes
    EXPECT_EQ(digest(tail).item<int64_t>(), digest(half.to(at::kCUDA).slice(0, 1)).item<int64_t>()) << size;
  }
}

void expect_digests_of_pieces(const at::Device& device) {
  for (const auto& [size, pieces] : {std::pair(1, 1), {12, 4}, {3 * 8191, 3}, {4 * 100003, 4}, {6000000, 2}}) {
    const at::Tensor x = at::randint(-128, 128, {size}, at::kChar).to(device);
    const at::Tensor state = at::zeros({pieces, kDigestStateWords}, x.options().dtype(at::kLong));
    digest_into(x, state.mutable_data_ptr<int64_t>(), pieces);
    const std::vector<at::Tensor> parts = x.chunk(pieces);
    for (int64_t i = 0; i < pieces; ++i)
      EXPECT_EQ(state[i][0].item<int64_t>(), digest(parts[static_cast<std::size_t>(i)]).item<int64_t>()) << size;
  }
}
TEST_F(Cuda, DigestsOfPiecesAreThoseOfEach) { expect_digests_of_pieces(at::kCUDA); }
TEST(Cpu, DigestsOfPiecesAreThoseOfEach) { expect_digests_of_pieces(at::kCPU); }

TEST_F(Cuda, ReadsTheControlRowAndAdvancesIt) {
  const Rule rule = parse_rule("relative_gaussian(strength=0.05)", RuleUse::kOnTensor);
  const at::Tensor x = at::randn({64, 256}).to(at::kBFloat16);
  at::Tensor device = x.to(at::kCUDA), control = make_control(device.device(), rule, {7, 0, {}}),
             ledger = make_ledger(device.device());
  const Identity identity{1, "site", 0};
  at::Tensor first = device.clone(), second = device.clone();
  apply_(first, rule, identity, {}, {control, ledger, {}});
  apply_(second, rule, identity, {}, {control, ledger, {}});
  EXPECT_FALSE(at::equal(first, second));
  for (uint32_t call = 0; call < 2; ++call) {
    at::Tensor expected = x.clone();
    apply_(expected, rule, identity, {7, call, {}});
    EXPECT_TRUE(same_bytes(expected, call == 0 ? first : second));
  }
  EXPECT_EQ(control.cpu()[8].item<int>(), 2 * static_cast<int>(kProgressPerCall));
  EXPECT_EQ(ledger_columns(ledger)[kCalls].item<double>(), 2);
  control[0].fill_(0);  // disarmed
  at::Tensor untouched = device.clone();
  apply_(untouched, rule, identity, {}, {control, ledger, {}});
  EXPECT_TRUE(at::equal(untouched, device));
  EXPECT_EQ(ledger_columns(ledger)[kCalls].item<double>(), 2);
}

}  // namespace cuda_test
}  // namespace faultline::numeric
