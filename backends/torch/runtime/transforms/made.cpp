#include "transforms.h"

namespace loma {

Operator* made(Operator& op, const char* kind, const std::vector<int>& positions) {
  const std::pair<std::string, std::vector<int>> key(kind, positions);
  {
    const std::lock_guard<std::mutex> lock(op.module->mutex);
    const auto known = op.made.find(key);
    if (known != op.made.end()) return known->second;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.module->made, op.function->display, ": '", kind, "' of ", op.function->name,
      " is not part of the compiled code. It is made and compiled when first needed, which only a "
      "program in Python can do.");
  // Not under the module's lock: the hook takes Python's. Two threads compile the same module only
  // once.
  Operator* const found = op.module->made(kind, op.function->name, positions);
  const std::lock_guard<std::mutex> lock(op.module->mutex);
  return op.made[key] = found;
}

}  // namespace loma
