// The forms of convolutions that are made of calls of the library, and the choice among all forms.
#include "allocate.h"
#include "convolution_choice.h"
#include "convolution_forms.h"
#include "tuning.h"

#include <ATen/Context.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>

#include <algorithm>
#include <cstdlib>

namespace loma {
namespace convolution {

double Problem::operations() const {
  double product = static_cast<double>(batch) * static_cast<double>(channels / groups) *
                   static_cast<double>(filters);
  for (const Axis& axis : axes) {
    product *= static_cast<double>(axis.kernel) * static_cast<double>(axis.out);
  }
  return 2 * product;
}

namespace {

constexpr std::array<int64_t, 2> kNone{0, 0};

bool always(const Problem&) { return true; }

// The two operands in that memory format, given to the library.
at::Tensor library_in(const Problem& problem, const at::Tensor& first, const at::Tensor& second,
                      at::MemoryFormat format) {
  const auto strides = problem.pair(&Axis::stride), margins = problem.pair(&Axis::padding);
  const auto dilations = problem.pair(&Axis::dilation);
  const auto stride = c10::fromIntArrayRefSlow(strides), padding = c10::fromIntArrayRefSlow(margins),
             dilation = c10::fromIntArrayRefSlow(dilations), none = c10::fromIntArrayRefSlow(kNone);
  const bool plain = format == at::MemoryFormat::Contiguous;
  const at::Tensor a = plain ? first : first.contiguous(format);
  const at::Tensor b = plain ? second : second.contiguous(format);
  if (problem.operation == Operation::Forward) {
    return at::_ops::convolution::call(a, b, problem.bias, stride, padding, dilation, false, none,
                                       problem.groups);
  }
  // The other operand's values are not looked at, only its sizes: memory that is never touched.
  const bool of_input = problem.operation == Operation::Input;
  const at::Tensor blank =
      empty(of_input ? problem.image_shape() : problem.weight_shape(), a.options(), format);
  const auto [dx, dw, db] = at::_ops::convolution_backward::call(
      a, of_input ? blank : b, of_input ? b : blank, std::nullopt, stride, padding, dilation, false,
      none, problem.groups, {of_input, !of_input, false});
  return of_input ? dx : dw;
}

at::Tensor library(const Problem& problem, const at::Tensor& a, const at::Tensor& b) {
  return library_in(problem, a, b, at::MemoryFormat::Contiguous);
}

at::Tensor channels_last(const Problem& problem, const at::Tensor& a, const at::Tensor& b) {
  return library_in(problem, a, b, at::MemoryFormat::ChannelsLast).contiguous();
}

// Below that many operations a choice would not pay for looking it up.
constexpr double kSmall = 4e6;

// Of the operators, by Operation.
constexpr std::array<const char*, 3> kNames{"conv2d", "conv2d_input", "conv2d_weight"};

std::string description(const Problem& problem) {
  std::string text = std::string("operator ") + kNames[static_cast<size_t>(problem.operation)] +
                     "\ndtype " + c10::toString(problem.dtype);
  const auto line = [&](const char* name, at::IntArrayRef values) {
    text += std::string("\n") + name;
    for (const int64_t value : values) text += " " + std::to_string(value);
  };
  line("images", problem.image_shape());
  line("weights", problem.weight_shape());
  line("stride", problem.pair(&Axis::stride));
  line("padding", problem.pair(&Axis::padding));
  line("dilation", problem.pair(&Axis::dilation));
  line("groups", problem.groups);
  return text + "\n";
}

// Whether the sizes fit together; the library has the messages for those that do not.
bool consistent(const Problem& p, const at::Tensor& a, const at::Tensor& b) {
  if (p.groups < 1 || p.filters % p.groups != 0 || p.channels % p.groups != 0) return false;
  for (const Axis& axis : p.axes) {
    if (axis.stride < 1 || axis.dilation < 1 || axis.padding < 0 || axis.out < 1) return false;
  }
  const auto has = [](const at::Tensor& t, const std::vector<int64_t>& shape) {
    return t.sizes() == at::IntArrayRef(shape) && t.layout() == at::kStrided;
  };
  if (p.bias && !has(*p.bias, {p.filters})) return false;
  const bool forward = p.operation == Operation::Forward;
  return has(a, forward ? p.image_shape() : p.result_shape()) &&
         has(b, p.operation == Operation::Weight ? p.image_shape() : p.weight_shape()) &&
         a.scalar_type() == b.scalar_type();
}

// Where there is nothing to multiply: the library's result of images without channels has no
// filters, and it refuses that there are none.
at::Tensor of_nothing(const Problem& p, const at::TensorOptions& options) {
  if (p.operation == Operation::Input) return zeros(p.image_shape(), options);
  if (p.operation == Operation::Weight) return zeros(p.weight_shape(), options);
  const at::Tensor result = zeros(p.result_shape(), options);
  return p.bias ? result.add_(p.bias->reshape({p.filters, 1, 1})) : result;
}

Problem problem_of(Operation operation, at::IntArrayRef images, at::IntArrayRef weights,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   int64_t groups, at::ScalarType dtype) {
  Problem problem{operation, images[0], images[1], weights[0], groups, {}, dtype, std::nullopt};
  for (size_t d = 0; d < 2; ++d) {
    Axis& axis = problem.axes[d];
    axis = {images[2 + d], weights[2 + d], 0, stride[d], padding[d], dilation[d]};
    const int64_t room = axis.in + 2 * axis.padding - axis.extent();
    axis.out = room < 0 || axis.stride < 1 ? 0 : room / axis.stride + 1;
  }
  return problem;
}

// The form that LOMA_CONVOLUTION asks for: "library" where that one does not apply.
const Form* asked_for(const Problem& problem) {
  const char* name = std::getenv("LOMA_CONVOLUTION");
  if (name == nullptr || *name == '\0') return nullptr;
  for (const Form& form : forms()) {
    if (form.name == std::string(name)) return form.applies(problem) ? &form : &forms()[0];
  }
  std::string known;
  for (const Form& form : forms()) known += (known.empty() ? "" : ", ") + std::string(form.name);
  TORCH_CHECK_VALUE(false, "LOMA_CONVOLUTION: there is no form '", name,
                    "' of convolutions; there are ", known);
}

const Form& chosen(const Problem& problem, const at::Tensor& a, const at::Tensor& b) {
  const auto& all = forms();
  if (const Form* form = asked_for(problem)) return *form;
  // What is measured on one day may be another form on the next.
  const bool deterministic = at::globalContext().deterministicAlgorithms();
  if (deterministic || problem.operations() < kSmall) return all[0];
  const std::string text = description(problem);
  const std::string known = known_choice(text);
  std::vector<const Form*> usable;
  std::vector<std::string> names;
  for (const Form& form : all) {
    if (form.name == known) return form;
    if (known.empty() && form.applies(problem) && form.promises(problem)) {
      usable.push_back(&form);
      names.emplace_back(form.name);
    }
  }
  return *usable[choose(text, names, [&](size_t i) { usable[i]->run(problem, a, b); })];
}

at::Tensor compute(const Problem& problem, const at::Tensor& a, const at::Tensor& b) {
  if (!consistent(problem, a, b)) return library(problem, a, b);
  if (problem.operations() == 0) return of_nothing(problem, a.options());
  const bool own = problem.dtype == at::kFloat || problem.dtype == at::kDouble;
  if (!own || !a.is_cpu()) return library(problem, a, b);
  const at::Tensor result = chosen(problem, a, b).run(problem, a, b);
  return result.defined() ? result : library(problem, a, b);
}

}  // namespace

const std::vector<Form>& forms() {
  static const std::vector<Form> all{
      {"library", always, always, library},
      {"channels_last", always, always, channels_last},
      {"gemm", gemm_applies, always, gemm},
      {"direct", direct_applies, direct_promises, direct},
      {"fft", fft_applies, fft_promises, fft},
  };
  return all;
}

std::vector<std::string> applicable(const std::string& operation, at::IntArrayRef images,
                                    at::IntArrayRef weights, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    int64_t groups) {
  std::vector<std::string> names;
  const auto known = std::find(kNames.begin(), kNames.end(), operation);
  if (known == kNames.end()) return names;
  const Problem problem = problem_of(static_cast<Operation>(known - kNames.begin()), images, weights,
                                     stride, padding, dilation, groups, at::kFloat);
  for (const Form& form : forms()) {
    if (form.applies(problem)) names.emplace_back(form.name);
  }
  return names;
}

}  // namespace convolution

at::Tensor conv2d(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                  at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                  int64_t groups) {
  auto problem =
      convolution::problem_of(convolution::Operation::Forward, x.sizes(), w.sizes(), stride,
                              padding, dilation, groups, x.scalar_type());
  if (bias && bias->defined()) problem.bias = bias;
  return convolution::compute(problem, x, w);
}

at::Tensor conv2d_input(const at::Tensor& g, const at::Tensor& w, at::IntArrayRef shape,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                        int64_t groups) {
  return convolution::compute(
      convolution::problem_of(convolution::Operation::Input, shape, w.sizes(), stride, padding,
                              dilation, groups, g.scalar_type()),
      g, w);
}

at::Tensor conv2d_weight(const at::Tensor& g, const at::Tensor& x, at::IntArrayRef shape,
                         at::IntArrayRef stride, at::IntArrayRef padding,
                         at::IntArrayRef dilation, int64_t groups) {
  return convolution::compute(
      convolution::problem_of(convolution::Operation::Weight, x.sizes(), shape, stride, padding,
                              dilation, groups, g.scalar_type()),
      g, x);
}

}  // namespace loma
