// What Python sees of the choices among forms: loma/tools/tuning.py. Modules without convolutions
// are not linked to what chooses.
#include "binding.h"
#include "convolution_forms.h"
#include "tuning.h"

namespace loma {

namespace py = pybind11;

[[gnu::weak]] std::vector<std::string> chosen_records();
[[gnu::weak]] void forget_choices();

namespace convolution {
[[gnu::weak]] std::vector<std::string> applicable(const std::string&, at::IntArrayRef,
                                                  at::IntArrayRef, at::IntArrayRef,
                                                  at::IntArrayRef, at::IntArrayRef, int64_t);
}  // namespace convolution

namespace {

py::list list_of(const std::vector<std::string>& texts) {
  py::list made;
  for (const std::string& text : texts) made.append(text);
  return made;
}

std::vector<int64_t> sizes(const py::sequence& values) {
  std::vector<int64_t> made;
  for (const py::handle value : values) made.push_back(value.cast<int64_t>());
  return made;
}

}  // namespace

void bind_tuning(py::module_& python) {
  if (&chosen_records == nullptr) return;
  python.def("tuning_records", [] { return list_of(chosen_records()); });
  python.def("forget_tuning", [] { forget_choices(); });
  // name, images, weights, stride, padding, dilation, groups
  python.def("convolution_forms", [](const py::args& a) {
    return list_of(convolution::applicable(a[0].cast<std::string>(), sizes(a[1]), sizes(a[2]),
                                           sizes(a[3]), sizes(a[4]), sizes(a[5]),
                                           a[6].cast<int64_t>()));
  });
}

}  // namespace loma
