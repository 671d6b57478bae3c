// CapsNet without Python: the generated layers, called directly. The arguments and the lines on
// standard input and output are those of worker.py; see there.
#include "prelude.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/ivalue.h>

#include "convolution.h"
#include "decoder.h"
#include "digit_capsules.h"
#include "lengths.h"
#include "margin_loss.h"
#include "primary.h"
#include "reconstruction_loss.h"
#include "squash.h"

// As in torch/csrc/jit/serialization/pickle.h, which takes a compiler twelve seconds to read.
namespace torch::jit {
TORCH_API c10::IValue pickle_load(const std::vector<char>& data);
}

namespace {

using at::Tensor;
using Tensors = std::map<std::string, Tensor>;

constexpr double kReconstructionWeight = 0.0005;  // section 4.1

struct Options {
  int64_t primary_dim, primary_stride, iterations, over_inputs;
};

// What torch.save wrote.
Tensors read_tensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  Tensors tensors;
  for (const auto& entry : torch::jit::pickle_load(bytes).toGenericDict())
    tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  return tensors;
}

class CapsNet {
 public:
  CapsNet(Tensors tensors, Options options)
      : options_(options),
        images_(tensors.extract("images").mapped()),
        targets_(tensors.extract("targets").mapped()),
        parameters_(std::move(tensors)) {
    for (auto& [name, parameter] : parameters_) parameter.set_requires_grad(true);
  }

  // Forward, loss and backward; the gradients replace those of the iteration before.
  Tensor iteration() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    Tensor loss = forward();
    loss.backward();
    return loss;
  }

  const Tensors& parameters() const { return parameters_; }

 private:
  // The loss. A function of its own, so that during the backward pass a layer's result lives no
  // longer than autograd needs it.
  Tensor forward() const {
    Tensor features = loma_convolution::convolution(images_, p("conv.weight"), p("conv.bias"));
    Tensor inputs = loma_primary::primary(
        features, p("primary.weight"), p("primary.bias"), options_.primary_dim,
        options_.primary_stride);
    Tensor squashed = loma_squash::squash(inputs);
    Tensor capsules = loma_digit_capsules::digit_capsules(
        p("digit_weight"), squashed, options_.iterations, options_.over_inputs);
    Tensor reconstruction = loma_decoder::decoder(
        capsules, targets_, p("fc1.weight"), p("fc1.bias"), p("fc2.weight"), p("fc2.bias"),
        p("fc3.weight"), p("fc3.bias"));
    Tensor margin = loma_margin_loss::margin_loss(loma_lengths::lengths(capsules), targets_);
    Tensor blurred = loma_reconstruction_loss::reconstruction_loss(
        images_.flatten(1), reconstruction);
    return margin.add(blurred, kReconstructionWeight);
  }

  const Tensor& p(const char* name) const { return parameters_.at(name); }

  Options options_;
  Tensor images_, targets_;
  Tensors parameters_;
};

void say_result(const Tensor& loss, const CapsNet& net) {
  std::cout << "{\"loss\": " << loss.item<double>() << ", \"gradients\": {";
  const char* comma = "";
  for (const auto& [name, parameter] : net.parameters()) {
    Tensor gradient = parameter.grad().to(at::kDouble);
    std::cout << comma << '"' << name << "\": [" << gradient.sum().item<double>() << ", "
              << gradient.abs().sum().item<double>() << ']';
    comma = ", ";
  }
  std::cout << "}}";
}

void measure(CapsNet& net, long count) {
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < count; ++i) net.iteration();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << "{\"seconds\": " << seconds.count() << "}" << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 7) {
    std::cerr << "usage: " << argv[0]
              << " INPUTS THREADS PRIMARY_DIM PRIMARY_STRIDE ITERATIONS OVER_INPUTS\n";
    return 2;
  }
  at::set_num_threads(std::atoi(argv[2]));
  CapsNet net(read_tensors(argv[1]),
              {std::atol(argv[3]), std::atol(argv[4]), std::atol(argv[5]), std::atol(argv[6])});
  std::cout.precision(17);
  say_result(net.iteration(), net);
#ifdef __GLIBC__
  malloc_trim(0);  // loading and checksums are not what is profiled; see worker.py
#endif
  std::cout << std::endl;
  for (std::string line; std::getline(std::cin, line);)
    measure(net, std::atol(line.c_str() + std::strlen("run ")));
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
