// A program of torch's C++ interface under a recipe: two layers, 5 % noise on the matmuls of the second, and the proof.
//
//   cmake --install build --prefix /opt/faultline                         # in Faultline, after ./dev build
//   cmake -B out -DCMAKE_PREFIX_PATH=/opt/faultline && cmake --build out  # here
//   out/example
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <faultline/faultline.h>

#include <cstdio>
#include <exception>
#include <string>

namespace fl = faultline::api;

namespace {

constexpr char kRecipe[] = R"(
seed: 7
faults:
  - name: noise
    where: {operator: matmul, layer: 1}
    what: {kind: relative_gaussian, strength: 0.05}
)";

at::Tensor forward(at::Tensor x, const at::Tensor& weight) {
  for (const int layer : {0, 1}) {
    const fl::Module module("model.layers." + std::to_string(layer) + ".mlp.up_proj");
    x = at::mm(x, weight).tanh();
  }
  return x;
}

int run() {
  at::manual_seed(0);
  const c10::InferenceMode no_gradients;
  const at::Tensor x = at::randn({8, 64}), weight = at::randn({64, 64}) / 8;
  const uint64_t clean = fl::digest(forward(x, weight));

  fl::Armed armed(fl::Recipe::parse(kRecipe));
  const fl::PhaseScope phase("eval");
  const uint64_t faulty = fl::digest(forward(x, weight));
  const fl::Proof proof = armed.judge();
  for (const std::string& line : proof.log) std::printf("%s\n", line.c_str());
  if (!proof.holds()) {
    std::printf("not proven: %s\n", proof.sentences().c_str());
    return 3;
  }
  std::printf("clean %016lx, faulty %016lx: %s\n", clean, faulty, clean == faulty ? "equal" : "different");
  return clean == faulty ? 3 : 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 64;
  }
}
