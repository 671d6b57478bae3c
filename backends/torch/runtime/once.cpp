#include "once.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

namespace loma {
namespace {

// Where the table of all elements would have more than this many bits for each that is named, those
// that are named are looked up in a set instead, which is slower for each.
constexpr int64_t kSparse = 64;

// The first number that was there before, in their order, or `count` if they differ.
int64_t repeated(const int64_t* cells, int64_t count) {
  std::unordered_set<int64_t> seen;
  seen.reserve(count);
  for (int64_t k = 0; k < count; ++k) {
    if (!seen.insert(cells[k]).second) return k;
  }
  return count;
}

bool all_differ(const int64_t* cells, int64_t count, int64_t size) {
  if (size / kSparse > count) return repeated(cells, count) == count;
  std::vector<bool> seen(size);
  for (int64_t k = 0; k < count; ++k) {
    if (seen[cells[k]]) return false;
    seen[cells[k]] = true;
  }
  return true;
}

// The position of that number among those of the dimensions: "i = 2, j = 0", or, without names,
// "2, 0", with the text of those that have one.
std::string position(int64_t number, std::initializer_list<Sized> dims, bool named) {
  std::string text;
  for (size_t k = dims.size(); k-- > 0;) {
    const Sized& dim = dims.begin()[k];
    const bool counts = named || !dim.text;
    const std::string value = counts ? std::to_string(number % dim.size) : dim.text;
    text = (named ? std::string(dim.text) + " = " : "") + value + (text.empty() ? "" : ", ") + text;
    if (counts) number /= dim.size;
  }
  return text;
}

}  // namespace

void check_once(const char* place, const char* target, const char* tensor, const at::Tensor& cells,
                std::initializer_list<Sized> axes, std::initializer_list<Sized> dims) {
  int64_t size = 1;
  for (const Sized& dim : dims) {
    if (!dim.text) size *= dim.size;
  }
  const int64_t count = cells.numel();
  const at::Tensor numbers = cells.cpu();
  const int64_t* found = numbers.const_data_ptr<int64_t>();
  const bool inside = std::all_of(found, found + count, [size](int64_t cell) {
    return cell >= 0 && cell < size;
  });
  if (!inside || all_differ(found, count, size)) return;  // the statement reports what is outside
  const int64_t second = repeated(found, count);
  const int64_t first = std::find(found, found + count, found[second]) - found;
  TORCH_CHECK_VALUE(false, place, "'", target, "' is assigned twice: at ",
                    position(first, axes, true), " and at ", position(second, axes, true), " it is ",
                    tensor, "[", position(found[second], dims, false), "]; '+=' adds up what falls on one element");
}

}  // namespace loma
