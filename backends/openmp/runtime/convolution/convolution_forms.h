// The forms in which a convolution and its adjoints can be computed; not for generated code.
//
// With respect to images and weights the adjoints of a convolution are convolutions too. Which form
// is fastest depends on sizes and machine: it is measured (tuning.h). Forms differ in rounding, all
// are as accurate as the dtype, and none depends on the number of threads more than the library.
#ifndef LOMA_CONVOLUTION_FORMS_H
#define LOMA_CONVOLUTION_FORMS_H

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace loma {
namespace convolution {

// One dimension of the image.
struct Axis {
  int64_t in, kernel, out, stride, padding, dilation;
  int64_t extent() const { return (kernel - 1) * dilation + 1; }  // from first to last tap
};

enum class Operation { Forward, Input, Weight };

// What is computed. A form gets the two operands in the order of the public functions: (x, w),
// (g, w), (g, x).
struct Problem {
  Operation operation;
  int64_t batch, channels, filters, groups;  // B, C, O
  std::array<Axis, 2> axes;
  at::ScalarType dtype;
  std::optional<at::Tensor> bias;  // added to the result of Forward

  std::array<int64_t, 2> pair(int64_t Axis::*member) const {
    return {axes[0].*member, axes[1].*member};
  }
  std::vector<int64_t> image_shape() const { return {batch, channels, axes[0].in, axes[1].in}; }
  std::vector<int64_t> weight_shape() const {
    return {filters, channels / groups, axes[0].kernel, axes[1].kernel};
  }
  std::vector<int64_t> result_shape() const { return {batch, filters, axes[0].out, axes[1].out}; }
  // Multiplications and additions of the definition.
  double operations() const;
};

// A way to compute a problem: new, dense memory. `run` may assume `applies`; an undefined result
// stands for values that are not finite, which this form would spread: the library computes then.
struct Form {
  const char* name;
  bool (*applies)(const Problem&);
  bool (*promises)(const Problem&);  // whether it is worth measuring
  at::Tensor (*run)(const Problem&, const at::Tensor&, const at::Tensor&);
};

// The form "library" is the first one and always applies.
//
// Two more were tried and never won, on 2 cores with AVX-512: the adjoint of the weights as a
// convolution with batch and channels exchanged (stride and dilation change places), and the adjoint
// of the images as one convolution for each phase of the stride. Where they beat the library, "fft"
// and "gemm" beat them.
const std::vector<Form>& forms();
// The names of the forms that apply to a convolution of those shapes in float32; the operation as
// its operator is called.
std::vector<std::string> applicable(const std::string& operation, at::IntArrayRef images,
                                    at::IntArrayRef weights, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    int64_t groups);

// Memory that a form may use beside operands and result, in bytes.
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

// out = a b, or out += a b, of matrices. To be called inside at::parallel_for. Long sums are cut, since
// MKL cuts them differently when it is called by one thread alone (seen above 384 terms).
void multiply(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate);

// convolution_gemm.cpp: matrix products with the image's windows as columns (im2col).
bool gemm_applies(const Problem& problem);
at::Tensor gemm(const Problem& problem, const at::Tensor& first, const at::Tensor& second);

// convolution_direct.cpp: sums of shifted images in registers.
bool direct_applies(const Problem& problem);
bool direct_promises(const Problem& problem);
at::Tensor direct(const Problem& problem, const at::Tensor& first, const at::Tensor& second);

// convolution_fft.cpp: products of Fourier transforms.
bool fft_applies(const Problem& problem);
bool fft_promises(const Problem& problem);
at::Tensor fft(const Problem& problem, const at::Tensor& first, const at::Tensor& second);

}  // namespace convolution
}  // namespace loma

#endif  // LOMA_CONVOLUTION_FORMS_H
