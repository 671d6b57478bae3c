// What Python does for kernels of GPUs: it compiles them (backends/cuda/images.py), asks what they
// have reported, and tests all that needs no GPU.
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

py::dict as_dict(const gpu::Geometry& g) {
  using py::literals::operator""_a;
  return py::dict("threads"_a = g.threads, "team"_a = g.team, "across"_a = g.across,
                  "shared"_a = g.shared, "blocks"_a = g.blocks, "slices"_a = g.slices,
                  "beside"_a = g.beside, "rows"_a = g.rows, "columns"_a = g.columns,
                  "registers"_a = g.registers,
                  "shared_bytes"_a = g.shared_bytes,
                  "workspace_bytes"_a = g.workspace_bytes);
}

// By member, what is not as usual.
gpu::Shape shape_of(const py::dict& given) {
  gpu::Shape shape;
  const auto take = [&](const char* name, int& member) {
    if (given.contains(name)) member = given[name].cast<int>();
  };
  take("team", shape.team);
  take("threads", shape.threads);
  take("slices", shape.slices);
  take("beside", shape.beside);
  take("blocks", shape.blocks);
  return shape;
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
  python.def(
      "statement_geometry",
      [](int64_t count, int64_t inner, bool across, bool splits, int64_t several, int64_t around,
         int64_t second, bool pairs, const py::dict& shape) {
        return as_dict(gpu::statement_geometry(count, inner, across, splits, 4, several, around,
                                               second, pairs, shape_of(shape)));
      },
      py::arg("count"), py::arg("inner"), py::arg("across"), py::arg("splits"),
      py::arg("several") = 0, py::arg("around") = 1, py::arg("second") = 1,
      py::arg("pairs") = false, py::arg("shape") = py::dict());
  python.def(
      "running_geometry",
      [](int64_t rows, int64_t length, bool splits, bool across, const py::dict& shape) {
        return as_dict(gpu::running_geometry(rows, length, splits, across, shape_of(shape)));
      },
      py::arg("rows"), py::arg("length"), py::arg("splits"), py::arg("across"),
      py::arg("shape") = py::dict());
  python.def(
      "fused_geometry",
      [](int64_t count, int64_t inner, int64_t bytes, int64_t most, int64_t far,
         const py::dict& shape, int64_t least) {
        const gpu::Geometry g =
            gpu::fused_geometry(count, inner, bytes, most, far, shape_of(shape), 0, least);
        py::dict found = as_dict(g);
        found["registers"] = gpu::registers_for(g, sizeof(float), most);
        return found;
      },
      py::arg("count"), py::arg("inner"), py::arg("bytes"), py::arg("most"), py::arg("far") = 0,
      py::arg("shape") = py::dict(), py::arg("least") = gpu::kUsualNumbers);
}

}  // namespace loma
