// A decode step recorded and replayed: it must follow the lengths in device memory, leave torch's allocator in order,
// and survive bodies that fail. Skipped where there is no GPU.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/cuda/graph.h"
#include "model/ops.h"

namespace faultline::model {
namespace cuda_graph_test {

class Graph : public ::testing::Test {
 protected:
  void SetUp() override {
    static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr || !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
  const c10::InferenceMode inference;
  const at::Device device{at::kCUDA, 0};
  const at::TensorOptions half = at::TensorOptions().dtype(at::kBFloat16).device(device);
  const at::TensorOptions integer = at::TensorOptions().dtype(at::kLong).device(device);
};

TEST_F(Graph, FollowsTheLengthsAsTheyGrow) {
  const at::Tensor query = at::randn({2, 12 * 128}, half), token = at::randn({2, 2 * 128}, half);
  at::Tensor keys = at::zeros({2, 2, 300, 128}, half), values = at::zeros({2, 2, 300, 128}, half);
  at::Tensor positions = at::zeros({2}, integer), lengths = at::ones({2}, integer), rows = at::arange(2, integer);
  at::Tensor out;
  const auto step = [&] {
    ops::store_kv_(keys, values, token * positions.unsqueeze(1), token + positions.unsqueeze(1), rows, positions);
    out = ops::attend_cached(query, keys, values, lengths, 0.088);
    positions.add_(1);
    lengths.add_(1);
  };
  DecodeGraph graph(device);
  EXPECT_THROW(graph.replay(), UsageError);
  graph.capture(step, 2);
  positions.zero_();
  lengths.fill_(1);
  for (int i = 0; i < 200; ++i) graph.replay();
  const at::Tensor replayed = out.clone(), filled = keys.clone();
  keys.zero_();
  values.zero_();
  positions.zero_();
  lengths.fill_(1);
  for (int i = 0; i < 200; ++i) step();
  EXPECT_TRUE(at::equal(out, replayed));
  EXPECT_TRUE(at::equal(keys, filled));
  EXPECT_GT(out.abs().max().item<float>(), 1.0f);
}

TEST_F(Graph, KeepsItsMemoryApartFromOtherTensors) {
  const at::Tensor x = at::ones({1 << 16}, half);
  at::Tensor out;
  DecodeGraph graph(device);
  graph.capture([&] { out = (x + 1) * 2; });
  std::vector<at::Tensor> others;
  for (int i = 0; i < 64; ++i) others.push_back(at::full({1 << 16}, i, half));
  graph.replay();
  EXPECT_TRUE(at::equal(out, at::full_like(x, 4)));
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(at::equal(others[static_cast<std::size_t>(i)], at::full_like(x, i))) << i;
}

TEST_F(Graph, RunsLibraryProductsAndCanBeRecordedAgain) {
  const at::Tensor x = at::randn({4, 256}, half), w = at::randn({512, 256}, half);
  at::Tensor out;
  DecodeGraph graph(device);
  for (int round = 0; round < 3; ++round) {
    graph.capture([&] { out = at::linear(x, w) + ops::few_rows_linear(x, w, {}); });
    graph.replay();
    EXPECT_TRUE(at::allclose(out.to(at::kFloat), 2 * at::linear(x.to(at::kFloat), w.to(at::kFloat)), 2e-2, 0.3));
  }
}

TEST_F(Graph, SurvivesABodyThatThrowsOrSynchronises) {
  const at::Tensor x = at::ones({8}, half);
  at::Tensor out;
  DecodeGraph graph(device);
  int calls = 0;
  EXPECT_THROW(graph.capture([&] {
    if (++calls > 2) throw UsageError("planted");
  }),
               UsageError);
  EXPECT_FALSE(graph.is_captured());
  EXPECT_ANY_THROW(graph.capture([&] { (x + 1).sum().item(); }));
  EXPECT_FALSE(graph.is_captured());
  graph.capture([&] { out = x + 1; });
  graph.replay();
  EXPECT_TRUE(at::equal(out, at::full_like(x, 2)));
}

}  // namespace cuda_graph_test
}  // namespace faultline::model
