// A function over lists: one call from Python for many tensors of any shape, each of which is
// written where it lies.
#include "call_device.h"
#include "gpu_lists.h"
#include "memory.h"
#include "operators.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace loma {

bool takes_lists(const Operator& op) {
  const Function& f = *op.function;
  const auto fits = [](const Parameter& p) {
    return p.kind == Kind::Float ? p.role == Role::In
                                 : p.kind == Kind::Tensor && p.rank == 1 &&
                                       is_slot(p.dims[0]) && p.role != Role::Adjoint;
  };
  return f.in_place && op.returned == 0 && f.sizes == 1 &&
         std::all_of(f.parameters.begin(), f.parameters.end(), fits);
}

namespace {

bool is_dense(const at::Tensor& x) { return x.is_non_overlapping_and_dense(); }

// Whether both have their elements in the same order; those of size 1 have no order.
bool same_order(const at::Tensor& x, const at::Tensor& y) {
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) != 1 && x.stride(d) != y.stride(d)) return false;
  }
  return true;
}

bool overlap(const at::Tensor& x, const at::Tensor& y) {
  const auto* a = static_cast<const char*>(x.const_data_ptr());
  const auto* b = static_cast<const char*>(y.const_data_ptr());
  return a < b + y.nbytes() && b < a + x.nbytes();
}

// The elements of a dense tensor in the order in which they lie, for a kernel: a tensor without
// history and version of its own.
at::Tensor flat(const at::Tensor& x) {
  auto made = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(x.storage()),
      c10::DispatchKeySet(served(x.device().type()).key), x.dtype());
  made->set_storage_offset(x.storage_offset());
  made->set_sizes_contiguous({x.numel()});
  return at::Tensor(std::move(made));
}

// A number's tensor at that position.
void check_number(const Operator& op, size_t i, size_t k, const ListCall& call) {
  const at::Tensor& x = call.lists[i][k];
  const auto where = [&] {
    return c10::str(op.function->display, ".each: '", op.parameter(i).name, "'[", k, "]");
  };
  TORCH_CHECK_VALUE(x.numel() == 1 && x.layout() == at::kStrided, where(),
                    " must have one element, got shape ", x.sizes());
  TORCH_CHECK_TYPE(x.is_floating_point() && has_plain_keys(x), where(),
                   " must be an ordinary floating tensor, got one of ", x.scalar_type());
  TORCH_CHECK_VALUE(!c10::GradMode::is_enabled() || !x.requires_grad(), where(),
                    " requires a gradient, which no call over lists passes on: call it under "
                    "torch.no_grad()");
}

void check(const Operator& op, size_t k, ListCall& call) {
  const Function& f = *op.function;
  const bool gradients = c10::GradMode::is_enabled();
  const at::Tensor* first = nullptr;
  const char* first_name = "";
  for (size_t i = 0; i < call.lists.size(); ++i) {
    const Parameter& p = op.parameter(i);
    if (p.kind == Kind::Float) {
      if (!call.numbers[i]) check_number(op, i, k, call);
      continue;
    }
    const at::Tensor& x = call.lists[i][k];
    const auto where = [&] { return c10::str(f.display, ".each: '", p.name, "'[", k, "]"); };
    TORCH_CHECK_VALUE(is_served(x.device().type()) && x.layout() == at::kStrided, where(),
                      " must be a dense tensor on ", kServedNames, ", got layout ", x.layout(),
                      " on ", x.device());
    TORCH_CHECK_TYPE(has_plain_keys(x), where(),
                     " must be an ordinary tensor, got one that PyTorch handles in Python, traces or"
                     " transforms");
    TORCH_CHECK_VALUE(!gradients || !x.requires_grad(), where(),
                      " requires a gradient, which no call over lists passes on: call it under "
                      "torch.no_grad()");
    TORCH_CHECK_VALUE(p.role != Role::Out || !x.is_inference() || c10::InferenceMode::is_enabled(),
                      where(), " is an inference tensor, which is written in inference mode only");
    if (first == nullptr) {
      first = &x;
      first_name = p.name;
      const auto dtype = x.scalar_type();
      TORCH_CHECK_TYPE(is_supported(dtype), where(), " must be a ", kSupported, " tensor, got ",
                       dtype);
      continue;
    }
    TORCH_CHECK_TYPE(x.scalar_type() == first->scalar_type(), where(), " is ", x.scalar_type(),
                     ", but '", first_name, "'[", k, "] is ", first->scalar_type());
    TORCH_CHECK_VALUE(x.device() == first->device(), where(), " is on ", x.device(), ", but '",
                      first_name, "'[", k, "] is on ", first->device());
    TORCH_CHECK_VALUE(x.sizes() == first->sizes(), where(), " has shape ", x.sizes(), ", but '",
                      first_name, "'[", k, "] has shape ", first->sizes());
  }
  for (size_t i = 0; i < call.lists.size(); ++i) {
    if (op.parameter(i).kind == Kind::Float) continue;
    for (size_t j = 0; j < i; ++j) {
      const bool writes = op.parameter(i).role == Role::Out && op.parameter(j).role == Role::Out;
      TORCH_CHECK_VALUE(!writes || !overlap(call.lists[i][k], call.lists[j][k]), f.display,
                        ".each: '", op.parameter(j).name, "'[", k, "] and '", op.parameter(i).name,
                        "'[", k, "] share memory, and both are written");
    }
  }
}

// The numbers as a kernel takes them, by schema argument; but those that have a tensor for each
// position.
Tensors numbers_of(const Operator& op, const ListCall& call, at::ScalarType dtype) {
  Tensors numbers(call.lists.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (call.numbers[i]) {
      numbers[i] = at::detail::scalar_tensor_static(*call.numbers[i], dtype, at::kCPU);
    }
  }
  return numbers;
}

// The memory of what waits to be launched.
class Waiting {
 public:
  // Whether what runs at that position may wait, too: it writes nothing that is in use, and reads
  // nothing that is written.
  bool admits(const Operator& op, size_t k, const ListCall& call) const {
    bool apart = uses_.size() < kMost;
    for (size_t i = 0; apart && i < call.lists.size(); ++i) {
      if (call.numbers[i]) continue;
      const Use own = use_of(op, i, k, call);
      apart = std::none_of(uses_.begin(), uses_.end(), [&](const Use& other) {
        return own.begin < other.end && other.begin < own.end && (own.writes || other.writes);
      });
    }
    return apart;
  }

  void add(const Operator& op, size_t k, const ListCall& call) {
    for (size_t i = 0; i < call.lists.size(); ++i) {
      if (!call.numbers[i]) uses_.push_back(use_of(op, i, k, call));
    }
  }

  void clear() { uses_.clear(); }

 private:
  struct Use {
    const char *begin, *end;
    bool writes;
  };
  static constexpr size_t kMost = 256;  // each is compared with all

  static Use use_of(const Operator& op, size_t i, size_t k, const ListCall& call) {
    const at::Tensor& x = call.lists[i][k];
    int64_t last = 0;
    for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
    const auto* begin = static_cast<const char*>(x.const_data_ptr());
    const char* end = x.numel() == 0 ? begin : begin + (last + 1) * x.element_size();
    return {begin, end, op.parameter(i).role == Role::Out};
  }

  std::vector<Use> uses_;
};

// Whether nothing was copied, so that what was asked for may wait.
bool run(const Operator& op, size_t k, const ListCall& call, const Tensors& numbers,
         at::ScalarType dtype, gpu::Lists& lists) {
  const auto is_out = [&](size_t i) { return op.parameter(i).role == Role::Out; };
  size_t first = 0;
  while (!is_out(first)) {
    ++first;
  }
  const at::Tensor& model = call.lists[first][k];
  if (model.numel() == 0) return true;
  const bool lies_well = is_dense(model) && model.scalar_type() == dtype;
  Tensors inputs(call.lists.size());
  Tensors copies;  // of Out arguments that lie otherwise
  bool plain = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (op.parameter(i).kind == Kind::Float) {
      inputs[i] = numbers[i];
      if (inputs[i].defined()) continue;
      const at::Tensor& own = call.lists[i][k];
      const at::Tensor cast = own.to(own.is_cpu() ? own.device() : model.device(), dtype);
      plain &= cast.is_same(own);
      inputs[i] = cast.dim() == 0 ? cast : cast.reshape({});
      continue;
    }
    const at::Tensor& x = call.lists[i][k];
    bool direct = lies_well && is_dense(x) && same_order(x, model);
    for (size_t j = 0; direct && !is_out(i) && j < inputs.size(); ++j) {
      direct = !is_out(j) || !overlap(x, call.lists[j][k]);
    }
    if (direct) {
      inputs[i] = flat(x);
      continue;
    }
    const auto format = is_dense(model) ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous;
    at::Tensor copy = at::empty_like(model, model.options().dtype(dtype), format);
    copy.copy_(x);
    inputs[i] = flat(copy);
    plain = false;
    if (is_out(i)) {
      copies.resize(inputs.size());
      copies[i] = std::move(copy);
    }
  }
  const CallOn call_on(model.device());
  const Kernel kernel = general_kernel(op, is_double(inputs), call_on.on_gpu());
  call_kernel(kernel, inputs, {}, true, op.function->results.size());
  if (!plain) lists.launch();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!copies.empty() && copies[i].defined()) {
      call.lists[i][k].copy_(copies[i]);
    } else if (is_out(i)) {
      call.lists[i][k].unsafeGetTensorImpl()->bump_version();
    }
  }
  return plain;
}

}  // namespace

void call_each(const Operator& op, ListCall call) {
  RECORD_FUNCTION(op.handle->schema().name(), std::vector<c10::IValue>());
  size_t first = 0;
  while (op.parameter(first).kind == Kind::Float) ++first;
  const size_t count = call.lists[first].size();
  for (size_t i = 0; i < call.lists.size(); ++i) {
    if (call.numbers[i]) continue;
    TORCH_CHECK_VALUE(call.lists[i].size() == count, op.function->display, ".each: '",
                      op.parameter(i).name, "' has ", call.lists[i].size(), " tensors, but '",
                      op.parameter(first).name, "' has ", count);
  }
  // Each tensor is computed in its own dtype, under autocast too.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (size_t k = 0; k < count; ++k) {  // all of them, before anything is written
    check(op, k, call);
  }
  const PoolScope pool;
  Tensors numbers, wide;
  c10::OptionalDeviceGuard on_device;
  gpu::Lists lists;
  Waiting waiting;
  const auto launch = [&] {
    lists.launch();
    waiting.clear();
  };
  const auto finish = [&](at::Device device) {
    launch();
    CallOn(device).finish();
  };
  for (size_t k = 0; k < count; ++k) {
    const at::Device device = call.lists[first][k].device();
    if (device != on_device.current_device()) {
      if (k > 0) finish(call.lists[first][k - 1].device());
      on_device.reset_device(device);
    }
    const bool waits = is_gpu(device);
    if (waits && !waiting.admits(op, k, call)) launch();
    const auto dtype = computed_in(call.lists[first][k].scalar_type());
    Tensors& own = dtype == at::kDouble ? wide : numbers;
    if (own.empty()) {
      own = numbers_of(op, call, dtype);
    }
    if (!run(op, k, call, own, dtype, lists)) {
      launch();
    } else if (waits) {
      waiting.add(op, k, call);
    }
  }
  if (count > 0) finish(call.lists[first][count - 1].device());
}

}  // namespace loma
