// Checking a call's arguments against the table, before anything runs.
#include "operators.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <new>
#include <string>

namespace loma {

static_assert(sizeof(c10::SymInt) == sizeof(Symbol) && alignof(c10::SymInt) == alignof(Symbol));
Symbol::Symbol(int64_t value) : Symbol(c10::SymInt(value)) {}
Symbol::Symbol(c10::SymInt value) { new (value_) c10::SymInt(std::move(value)); }
Symbol::Symbol(const Symbol& other) : Symbol(c10::SymInt(static_cast<const c10::SymInt&>(other))) {}
Symbol::~Symbol() { std::launder(reinterpret_cast<c10::SymInt*>(value_))->~SymInt(); }
Symbol::operator const c10::SymInt&() const {
  return *std::launder(reinterpret_cast<const c10::SymInt*>(value_));
}

#define LOMA_TRACED(Type, op)                           \
  Type operator op(const Symbol& a, const Symbol& b) { \
    const c10::SymInt &x = a, &y = b;                   \
    return x op y;                                      \
  }
LOMA_TRACED(Symbol, +)
LOMA_TRACED(Symbol, -)
LOMA_TRACED(Symbol, *)
LOMA_TRACED(bool, ==)
LOMA_TRACED(bool, !=)
LOMA_TRACED(bool, <)
LOMA_TRACED(bool, <=)
LOMA_TRACED(bool, >)
LOMA_TRACED(bool, >=)
#undef LOMA_TRACED

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = trunc_div(a, b);
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)));
}

int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

int64_t trunc_div(int64_t a, int64_t b) {
  TORCH_CHECK_VALUE(b != 0, "integer division by zero in a size");
  return a / b;
}

Symbol floor_div(const Symbol& a, const Symbol& b) {
  const c10::SymInt &x = a, &y = b;
  if (!x.is_symbolic() && !y.is_symbolic()) return floor_div(x.expect_int(), y.expect_int());
  return x / y;
}

Symbol floor_mod(const Symbol& a, const Symbol& b) {
  const c10::SymInt &x = a, &y = b;
  if (!x.is_symbolic() && !y.is_symbolic()) return floor_mod(x.expect_int(), y.expect_int());
  return x % y;
}

Symbol trunc_div(const Symbol& a, const Symbol& b) {
  const c10::SymInt &x = a, &y = b;
  if (!x.is_symbolic() && !y.is_symbolic()) return trunc_div(x.expect_int(), y.expect_int());
  return x / y;
}

void zero_step(const char* what) { TORCH_CHECK_VALUE(false, what); }

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kHalf: return "float16";
    case at::kBFloat16: return "bfloat16";
    case at::kLong: return "int64";
    case at::kInt: return "int32";
    case at::kShort: return "int16";
    case at::kChar: return "int8";
    case at::kByte: return "uint8";
    case at::kBool: return "bool";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    default: return c10::toString(dtype);
  }
}

namespace {

bool is_float_tensor(Kind kind) { return kind == Kind::Tensor || kind == Kind::Tensor32; }

// The dtypes that an IntTensor may have.
bool is_widened(at::ScalarType dtype) {
  return dtype == at::kLong || dtype == at::kInt || dtype == at::kShort || dtype == at::kChar ||
         dtype == at::kByte || dtype == at::kBool;
}

// What to pass instead of a tensor of another kind of dtype; a copy of what is written is no help.
std::string instead(const Parameter& p, at::ScalarType own) {
  if (p.role == Role::Out) return "";
  const std::string name = p.name;
  if (c10::isComplexType(own) && is_float_tensor(p.kind)) {
    return c10::str("; loma computes with real numbers: pass ", name, ".real and ", name,
                    ".imag as two arguments");
  }
  if (p.kind == Kind::BoolTensor) return c10::str("; pass ", name, " != 0");
  return c10::str("; pass ", name, p.kind == Kind::IntTensor ? ".long()" : ".float()");
}

void check_tensor(const Function& f, const Parameter& p, const at::Tensor& x, at::ScalarType dtype,
                  const Parameter*& first, const at::Tensor*& first_tensor) {
  TORCH_CHECK_TYPE(x.defined(), argument_text(f, p), " is an undefined tensor");
  const auto own = x.scalar_type();
  if (p.kind == Kind::BoolTensor) {
    TORCH_CHECK_TYPE(own == at::kBool, argument_text(f, p), " must be a bool tensor, got ",
                     dtype_name(own), instead(p, own));
  } else if (p.kind == Kind::IntTensor) {
    TORCH_CHECK_TYPE(is_widened(own), argument_text(f, p), " must be an int64 tensor (or int32, "
                     "int16, int8, uint8 or bool, which are widened), got ", dtype_name(own),
                     instead(p, own));
    // What is widened is a copy.
    TORCH_CHECK_TYPE(p.role != Role::Out || own == at::kLong, argument_text(f, p),
                     " is written, so it must be an int64 tensor, got ", dtype_name(own));
  } else {
    TORCH_CHECK_TYPE(is_supported(own), argument_text(f, p), " must be a ", kSupported,
                     " tensor, got ", dtype_name(own), instead(p, own));
    TORCH_CHECK_TYPE(p.kind != Kind::Tensor32 || own == at::kFloat, argument_text(f, p),
                     " must be a float32 tensor, got ", dtype_name(own), instead(p, own));
    TORCH_CHECK_TYPE(own == dtype, argument_text(f, p), " is ", dtype_name(own),
                     ", but the call's dtype is ", dtype_name(dtype),
                     "; all tensors of a call have the same dtype");
  }
  if (p.kind != Kind::Float) {
    if (first == nullptr) {
      first = &p;
      first_tensor = &x;
    }
    TORCH_CHECK_VALUE(x.device() == first_tensor->device(), argument_text(f, p), " is on ",
                      x.device(), ", but argument '", first->name, "' is on ",
                      first_tensor->device());
  }
  const int rank = p.kind == Kind::Float ? 0 : p.rank;
  TORCH_CHECK_VALUE(rank < 0 || x.dim() == rank, argument_text(f, p), " must have ", rank,
                    rank == 1 ? " dimension" : " dimensions", ", got ", x.dim(), " (shape ",
                    x.sym_sizes(), ")");
}

// Which parameter bound a size variable, for the message of a later disagreement.
const char* binder_of(const Operator& op, int slot) {
  for (const auto& p : op.function->parameters) {
    for (int d = 0; d < p.rank; ++d) {
      if (p.dims[d].rule == Dim::Rule::Bind && p.dims[d].value == slot) return p.name;
    }
  }
  return "";
}

template <class I>
[[noreturn]] void refuse_size(const Operator& op, const Parameter& p, int d, const I& found,
                              const I& expected) {
  const Function& f = *op.function;
  const std::string text = p.dims[d].text;
  for (int slot = 0; slot < f.sizes; ++slot) {
    TORCH_CHECK_VALUE(text != f.size_names[slot], f.display, ": size ", text, " is ", expected,
                      " in argument '", binder_of(op, slot), "' but ", found, " in argument '",
                      p.name, "' (dimension ", d, ")");
  }
  TORCH_CHECK_VALUE(false, argument_text(f, p), " has size ", found, " in dimension ", d,
                    ", expected ", text, text == c10::str(expected) ? "" : c10::str(" = ",
                    expected));
}

template <class I>
I size_of(const at::Tensor& x, int d) {
  if constexpr (std::is_same_v<I, int64_t>) {
    return x.size(d);
  } else {
    return x.sym_size(d);
  }
}

// The size variable that a dimension binds.
template <class I>
I bound(const Function& f, const Parameter& p, int d, const I& size) {
  const Dim& dim = p.dims[d];
  if (is_slot(dim)) return size;
  const I rest = size - dim.offset;
  // A size is not negative, so that without an offset above it the rest is none either.
  TORCH_CHECK_VALUE((dim.offset <= 0 || rest >= 0) && (dim.scale == 1 || floor_mod(rest,
                    I(dim.scale)) == 0), argument_text(f, p), " has size ", size, " in dimension ",
                    d, ", expected ", dim.text, " with a whole ", f.size_names[dim.value],
                    ", 0 or more");
  return floor_div(rest, I(dim.scale));
}

// Numbers lie on the host or beside the tensors. What a meta call gets is not looked at.
void check_numbers(const Operator& op, Arguments arguments) {
  const at::Device device = device_of_call(op, arguments);
  if (device.is_meta()) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.parameter(i).kind != Kind::Float) continue;
    const at::Device own = arguments[i].toTensor().device();
    TORCH_CHECK_VALUE(own.is_cpu() || own == device, argument_text(*op.function, op.parameter(i)),
                      " is on ", own, ", but the call is on ", device);
  }
}

template <class I>
I to_int(const c10::IValue& value) {
  if constexpr (std::is_same_v<I, int64_t>) {
    return value.toInt();
  } else {
    return value.toSymInt();
  }
}

}  // namespace

std::string argument_text(const Function& f, const Parameter& p) {
  return c10::str(f.display, ": argument '", p.name, "'");
}

void check_device(const Operator& op, Arguments arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const at::Device own = arguments[i].toTensor().device();
    const Parameter& p = op.parameter(i);
    TORCH_CHECK_VALUE(!own.is_cuda() || at::hasCUDA(), argument_text(*op.function, p), " is on ",
                      own, ", but this PyTorch is built without CUDA or finds no GPU; pass ", p.name,
                      ".cpu(), or see docs/gpu.md for what GPUs need");
  }
}

at::Device device_of_call(const Operator& op, Arguments arguments) {
  at::Device device(at::kCPU);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const at::Device own = arguments[i].toTensor().device();
    if (op.parameter(i).kind != Kind::Float) return own;
    if (device.is_cpu()) device = own;
  }
  return device;
}

at::ScalarType dtype_of_call(const Operator& op, Arguments arguments) {
  std::optional<at::ScalarType> scalar, wide;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Kind kind = op.parameter(i).kind;
    if (is_integer(kind) || !arguments[i].isTensor()) continue;
    const at::Tensor& x = arguments[i].toTensor();
    if (x.defined() && is_float_tensor(kind)) {
      if (!op.is_mixed || is_narrow(x.scalar_type())) return x.scalar_type();
      if (!wide) wide = x.scalar_type();
    }
    if (x.defined() && !scalar) {
      scalar = x.scalar_type();
    }
  }
  return wide ? *wide : scalar.value_or(c10::get_default_dtype_as_scalartype());
}

at::Tensor as_dtype(const at::Tensor& value, at::ScalarType dtype) {
  return value.scalar_type() == dtype ? value : value.to(dtype);
}

template <class I>
I evaluate(const Dim& dim, const std::vector<I>& slots) {
  switch (dim.rule) {
    case Dim::Rule::Bind:
    case Dim::Rule::Slot:
      return is_slot(dim) ? slots[dim.value] : slots[dim.value] * dim.scale + dim.offset;
    case Dim::Rule::Constant:
      return dim.value;
    case Dim::Rule::Expression:
      break;
  }
  if constexpr (std::is_same_v<I, int64_t>) {
    return dim.number(slots.data());
  } else {
    return dim.symbol(std::vector<Symbol>(slots.begin(), slots.end()).data());
  }
}

template <class I>
std::vector<I> bind_slots(const Operator& op, Arguments arguments) {
  const Function& f = *op.function;
  const auto dtype = dtype_of_call(op, arguments);
  const Parameter* first = nullptr;
  const at::Tensor* first_tensor = nullptr;
  std::vector<I> slots(f.sizes);
  bool checks = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Parameter& p = op.parameter(i);
    if (p.kind == Kind::Int) {
      slots.push_back(to_int<I>(arguments[i]));
      continue;
    }
    const at::Tensor& x = arguments[i].toTensor();
    const bool is_kept = op.is_mixed && x.defined() && x.scalar_type() == computed_in(dtype);
    check_tensor(f, p, x, is_kept ? computed_in(dtype) : dtype, first, first_tensor);
    for (int d = 0; d < p.rank; ++d) {
      if (p.dims[d].rule == Dim::Rule::Bind) {
        slots[p.dims[d].value] = bound<I>(f, p, d, size_of<I>(x, d));
      } else {
        checks = true;
      }
    }
  }
  check_numbers(op, arguments);
  for (size_t i = 0; checks && i < arguments.size(); ++i) {
    const Parameter& p = op.parameter(i);
    for (int d = 0; p.kind != Kind::Int && d < p.rank; ++d) {
      if (p.dims[d].rule != Dim::Rule::Bind) {
        const I found = size_of<I>(arguments[i].toTensor(), d);
        const I expected = evaluate(p.dims[d], slots);
        if (found != expected) {
          refuse_size(op, p, d, found, expected);
        }
      }
    }
  }
  return slots;
}

template std::vector<int64_t> bind_slots<int64_t>(const Operator&, Arguments);
template std::vector<c10::SymInt> bind_slots<c10::SymInt>(const Operator&, Arguments);
template int64_t evaluate<int64_t>(const Dim&, const std::vector<int64_t>&);
template c10::SymInt evaluate<c10::SymInt>(const Dim&, const std::vector<c10::SymInt>&);

}  // namespace loma
