// What Python sees of the choices among forms: loma/tools/tuning.py.
#include "binding.h"
#include "convolution_forms.h"
#include "tuning.h"

#include <pybind11/stl.h>

namespace loma {

namespace py = pybind11;

void bind_tuning(py::module_& python) {
  python.def("tuning_records", &chosen_records);
  python.def("forget_tuning", &forget_choices);
  using Sizes = std::vector<int64_t>;
  python.def("convolution_forms",
             [](const std::string& name, const Sizes& images, const Sizes& weights,
                const Sizes& stride, const Sizes& padding, const Sizes& dilation, int64_t groups) {
               return convolution::applicable(name, images, weights, stride, padding, dilation,
                                              groups);
             });
}

}  // namespace loma
