// What Python does for kernels of GPUs: it compiles them (backends/cuda/images.py) and asks what they
// have reported.
#include "binding.h"
#include "call_device.h"
#include "gpu_kernels.h"
#include "gpu_reports.h"

#include <torch/csrc/Exceptions.h>

#include <pybind11/stl.h>

#include <cstring>

namespace loma {

namespace py = pybind11;

namespace {

using gpu::Request;

py::tuple given(const Request& request) {
  py::list options;
  for (const std::string& option : request.options) options.append(option);
  return py::make_tuple(request.name, request.text, options, request.architecture);
}

// Python's errors as torch's engine carries them.
[[noreturn]] void carry() {
  python_error carried;
  carried.persist();
  throw carried;
}

std::string make(const py::object& hook, const Request& request) {
  const py::gil_scoped_acquire gil;
  try {
    return hook(*given(request)).cast<std::string>();
  } catch (py::error_already_set& error) {
    error.restore();
    carry();
  }
}

// The call that led here hears nothing of what goes wrong.
void make_later(const py::object& hook, const Request& request,
                std::function<void(std::string)> done) {
  const py::gil_scoped_acquire gil;
  try {
    hook(*given(request), py::cpp_function([done = std::move(done)](const py::bytes& image) {
           done(std::string(image));
         }));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("loma's hook for kernels of known numbers");
  }
}

// The hooks are never freed: a graph may outlive the interpreter's orderly end.
void set_image_hooks(py::object now, py::object later, int known) {
  auto* first = new py::object(std::move(now));
  auto* second = new py::object(std::move(later));
  gpu::set_compiler({
      [first](const Request& request) { return make(*first, request); },
      [second](const Request& request, std::function<void(std::string)> done) {
        make_later(*second, request, std::move(done));
      },
      known,
  });
}

// Throws what a kernel would report so.
void throw_check(int kind, const py::list& texts, const py::list& numbers) {
  Report report{};
  report.kind = kind;
  for (size_t k = 0; k < texts.size(); ++k) {
    std::strncpy(report.texts[k], texts[k].cast<std::string>().c_str(), Report::kLength - 1);
  }
  for (size_t k = 0; k < numbers.size(); ++k) report.numbers[k] = numbers[k].cast<int64_t>();
  gpu::throw_check(report);
}

// The exception that the scalar layer raises on the CPU.
void throw_failure(const Report& report) {
  const py::gil_scoped_acquire gil;
  const auto& n = report.numbers;
  try {
    const py::object exception = py::module_::import("loma.runtime_errors")
                                     .attr("exception")(n[0], report.texts[0], n[1], n[2], n[3]);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  } catch (py::error_already_set& error) {
    error.restore();
  }
  carry();
}

// Errors of the runtime as torch's operators raise theirs.
template <class Body>
void raising(const Body& body) {
  try {
    body();
  } catch (python_error& error) {
    const py::gil_scoped_acquire gil;
    error.restore();
    throw py::error_already_set();
  } catch (const c10::ValueError& error) {
    throw py::value_error(error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    throw py::index_error(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

// A @simd function's kernel, for one item each: its address, for launch_items. Never freed, as the
// kernels of generated code are not.
std::uintptr_t items_kernel(const std::string& name, const std::string& text) {
  return reinterpret_cast<std::uintptr_t>(new gpu::Kernel(name.c_str(), text.c_str()));
}

// Launches it for so many items on a device, below 0 that of a stand-in; `arguments` are the bytes of
// the kernel's parameters. At most so many blocks, which take items in turns; 0: as many as there are.
void launch_items(std::uintptr_t kernel, int blocks, int device, int64_t items,
                  const std::vector<std::string>& arguments) {
  const py::gil_scoped_release without_gil;
  raising([&] {
    const CallOn call(device < 0 ? at::Device(at::kCPU)
                                 : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
    gpu::Launch launch(*reinterpret_cast<gpu::Kernel*>(kernel), sizeof(float));
    for (const std::string& argument : arguments) launch.bytes(argument.data(), argument.size());
    launch.shape().blocks = blocks;
    launch.statement(items, 1, false, 0);
    call.finish();
  });
}

}  // namespace

void bind_gpu(py::module_& python) {
  gpu::set_failed(throw_failure);
  python.def("set_image_hooks", set_image_hooks);
  python.def("check_devices", [] {
    raising([] {
      const py::gil_scoped_release without_gil;
      gpu::check_devices();
    });
  });
  python.def("serve_cpu_by_gpu", serve_cpu_by_gpu);
  python.def("items_kernel", items_kernel);
  python.def("launch_items", [](std::uintptr_t kernel, int blocks, int device, int64_t items,
                                const std::vector<py::bytes>& arguments) {
    launch_items(kernel, blocks, device, items, {arguments.begin(), arguments.end()});
  });
  python.def("throw_check", [](int kind, const py::list& texts, const py::list& numbers) {
    raising([&] { throw_check(kind, texts, numbers); });
  });
}

}  // namespace loma
