// Matrix products as calls of the BLAS on views, so that parts of tensors are not copied.
#include "product.h"

#include "allocate.h"

#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

namespace loma {
namespace {

// The letters of a matrix's rows and columns, with those of a batch of matrices before.
struct Matrices {
  std::string batch, rows, columns;
};

struct Equation {
  std::string_view left, right, target;
  Matrices left_groups, right_groups, target_groups;
  bool swapped = false;  // the operands, so that the target's last dimension is a column's
};

bool has(std::string_view letters, char letter) { return letters.find(letter) != letters.npos; }

Equation parsed(std::string_view text) {
  Equation e;
  const size_t comma = text.find(','), arrow = text.find("->");
  e.left = text.substr(0, comma);
  e.right = text.substr(comma + 1, arrow - comma - 1);
  e.target = text.substr(arrow + 2);
  e.swapped = has(e.left, e.target.back());
  if (e.swapped) std::swap(e.left, e.right);
  std::string batch, rows, columns, summed;
  for (const char letter : e.target) {
    (!has(e.left, letter) ? columns : has(e.right, letter) ? batch : rows) += letter;
  }
  for (const char letter : e.right) {
    if (!has(e.target, letter)) summed += letter;
  }
  e.left_groups = {batch, rows, summed};
  e.right_groups = {batch, summed, columns};
  e.target_groups = {batch, rows, columns};
  return e;
}

// A view with one dimension for each group, without the batch where there is none; nothing where
// the dimensions of a group do not lie one after the other. A tensor without a batch that the others
// have is the same for all of it.
std::optional<at::Tensor> view(const at::Tensor& tensor, std::string_view letters,
                               const Matrices& groups) {
  std::array<int64_t, 3> sizes{1, 1, 1}, strides{0, 0, 0};
  const std::array<const std::string*, 3> each{&groups.batch, &groups.rows, &groups.columns};
  for (size_t k = 0; k < 3; ++k) {
    const std::string& group = *each[k];
    for (auto letter = group.rbegin(); letter != group.rend(); ++letter) {
      if (!has(letters, *letter)) continue;
      const int64_t dim = static_cast<int64_t>(letters.find(*letter));
      const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
      if (size == 1) continue;
      if (sizes[k] == 1) {
        strides[k] = stride;
      } else if (stride != strides[k] * sizes[k] && tensor.numel() > 0) {
        return std::nullopt;
      }
      sizes[k] *= size;
    }
  }
  // The BLAS looks at the strides of single rows and columns, too.
  if (sizes[2] == 1) strides[2] = 1;
  if (sizes[1] == 1) strides[1] = std::max<int64_t>(1, sizes[2] * strides[2]);
  const size_t first = groups.batch.empty() ? 1 : 0;
  return tensor.as_strided(at::IntArrayRef(sizes).slice(first), at::IntArrayRef(strides).slice(first));
}

at::Tensor permuted(const at::Tensor& tensor, std::string_view letters, const Matrices& groups) {
  c10::SmallVector<int64_t, 6> order;
  for (const char letter : groups.batch + groups.rows + groups.columns) {
    order.push_back(static_cast<int64_t>(letters.find(letter)));
  }
  return tensor.permute(order);
}

at::Tensor matrices(const at::Tensor& tensor, std::string_view letters, const Matrices& groups) {
  if (auto found = view(tensor, letters, groups)) return *found;
  const at::Tensor copy = permuted(tensor, letters, groups).contiguous();
  return *view(copy, groups.batch + groups.rows + groups.columns, groups);
}

int64_t count(const at::Tensor& tensor, std::string_view letters, std::string_view group) {
  int64_t size = 1;
  for (const char letter : group) size *= tensor.size(static_cast<int64_t>(letters.find(letter)));
  return size;
}

// Operands and target as views, where the first of a group's dimensions are a batch of products with
// the same other operand, if these are not too small: what lies between these dimensions and the
// others of the group, as n does in x[m, n, d], need not be copied behind them.
bool write_apart(const Equation& e, const at::Tensor& target, const at::Tensor& left,
                 const at::Tensor& right, bool add) {
  constexpr int64_t kLeast = 4096;  // multiplications of a product
  if (!e.target_groups.batch.empty()) return false;
  for (const bool of_rows : {false, true}) {
    const std::string& group = of_rows ? e.target_groups.rows : e.target_groups.columns;
    for (size_t first = 1; first < group.size(); ++first) {
      Equation apart = e;
      const std::string batch = group.substr(0, first), rest = group.substr(first);
      for (Matrices* each : {&apart.left_groups, &apart.right_groups, &apart.target_groups}) {
        each->batch = batch;
      }
      (of_rows ? apart.left_groups.rows : apart.right_groups.columns) = rest;
      (of_rows ? apart.target_groups.rows : apart.target_groups.columns) = rest;
      const int64_t size = count(target, e.target, apart.target_groups.rows) *
                           count(target, e.target, apart.target_groups.columns) *
                           count(left, e.left, e.left_groups.columns);
      if (size < kLeast) continue;
      auto a = view(left, e.left, apart.left_groups), b = view(right, e.right, apart.right_groups);
      auto out = view(target, e.target, apart.target_groups);
      if (!a || !b || !out) continue;
      const int64_t many = out->size(0);
      *a = a->expand({many, a->size(1), a->size(2)});
      *b = b->expand({many, b->size(1), b->size(2)});
      add ? out->baddbmm_(*a, *b) : at::_ops::bmm_out::call(*a, *b, *out);
      return true;
    }
  }
  return false;
}

bool copies(const Equation& e, const at::Tensor& target, const at::Tensor& left,
            const at::Tensor& right) {
  return !view(left, e.left, e.left_groups) || !view(right, e.right, e.right_groups) ||
         !view(target, e.target, e.target_groups);
}

void write(const Equation& e, at::Tensor target, const at::Tensor& left, const at::Tensor& right,
           bool add) {
  if (copies(e, target, left, right) && write_apart(e, target, left, right, add)) return;
  const at::Tensor a = matrices(left, e.left, e.left_groups);
  const at::Tensor b = matrices(right, e.right, e.right_groups);
  const bool batched = !e.target_groups.batch.empty();
  auto out = view(target, e.target, e.target_groups);
  if (!out) {
    const at::Tensor to = permuted(target, e.target, e.target_groups);
    const at::Tensor made = (batched ? a.bmm(b) : a.mm(b)).view(to.sizes());
    add ? to.add_(made) : to.copy_(made);
  } else if (add) {
    batched ? out->baddbmm_(a, b) : out->addmm_(a, b);
  } else {
    batched ? at::_ops::bmm_out::call(a, b, *out) : at::_ops::mm_out::call(a, b, *out);
  }
}

}  // namespace

at::Tensor product(std::string_view equation, const at::Tensor& left, const at::Tensor& right) {
  const Equation e = parsed(equation);
  const at::Tensor &first = e.swapped ? right : left, &second = e.swapped ? left : right;
  c10::SmallVector<int64_t, 6> sizes;
  for (const char letter : e.target) {
    const size_t at = e.left.find(letter);
    sizes.push_back(at != e.left.npos ? first.size(static_cast<int64_t>(at))
                                      : second.size(static_cast<int64_t>(e.right.find(letter))));
  }
  const at::Tensor target = empty(sizes, left.options());
  write(e, target, first, second, false);
  return target;
}

void product_into(at::Tensor target, std::string_view equation, const at::Tensor& left,
                  const at::Tensor& right, bool add) {
  const Equation e = parsed(equation);
  write(e, target, e.swapped ? right : left, e.swapped ? left : right, add);
}

Groups::Groups(const int64_t* of_row, int64_t rows, int64_t size, int64_t work) {
  constexpr int64_t kLeast = 1 << 19;  // multiplications of a product that take no longer in loops
  if (work < kLeast || rows == 0 || size <= 0) return;
  std::vector<int64_t> next(static_cast<size_t>(size) + 1);  // where a group's next row goes
  bool in_order = true;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t own = of_row[row];
    if (own < 0 || own >= size) return;
    in_order = in_order && (row == 0 || of_row[row - 1] <= own);
    ++next[static_cast<size_t>(own) + 1];
  }
  for (int64_t place = 0; place < size; ++place) {
    const auto at = static_cast<size_t>(place);
    const int64_t count = next[at + 1];
    if (count > 0) parts_.push_back({place, next[at], count});
    next[at + 1] += next[at];
  }
  pay_ = work >= kLeast * static_cast<int64_t>(parts_.size());
  if (!pay_ || in_order) return;
  order_.resize(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    order_[static_cast<size_t>(next[static_cast<size_t>(of_row[row])]++)] = row;
  }
}

namespace {

at::Tensor places_of(const Groups& groups, const at::Tensor& tensor) {
  at::Tensor made = empty({static_cast<int64_t>(groups.order().size())},
                          tensor.options().dtype(at::kLong));
  std::copy(groups.order().begin(), groups.order().end(), made.mutable_data_ptr<int64_t>());
  return made;
}

}  // namespace

at::Tensor sorted(const Groups& groups, const at::Tensor& tensor, int64_t dim) {
  if (groups.order().empty()) return tensor;
  at::Tensor made = room(groups, tensor);
  at::_ops::index_select_out::call(tensor, dim, places_of(groups, tensor), made);
  return made;
}

at::Tensor room(const Groups& groups, const at::Tensor& tensor) {
  return groups.order().empty() ? tensor : empty(tensor.sizes(), tensor.options());
}

void put(const Groups& groups, const at::Tensor& sorted, at::Tensor target, int64_t dim) {
  if (!groups.order().empty()) target.index_copy_(dim, places_of(groups, target), sorted);
}

at::Tensor at_place(const at::Tensor& tensor, int64_t dim, int64_t place) {
  return places(tensor, dim, place, 1).squeeze(dim);
}

at::Tensor places(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t count) {
  if (start >= 0 && count >= 0 && start + count <= tensor.size(dim)) {
    return tensor.narrow(dim, start, count);
  }
  c10::SmallVector<int64_t, 6> sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[dim] = std::max<int64_t>(count, 0);
  return tensor.new_zeros(sizes);
}

}  // namespace loma
