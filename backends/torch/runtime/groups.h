// Rows in groups, for products of matrices of which each group has its own.
#ifndef LOMA_GROUPS_H
#define LOMA_GROUPS_H

#include <cstdint>
#include <vector>

namespace loma {

#pragma GCC visibility push(default)

class Groups {
 public:
  struct Part {
    int64_t place, start, count;  // a group that has rows, and its rows once they are sorted
  };

  // `of_row`: the group of each of the rows, from 0 to `size`; `work`: the multiplications for all.
  Groups(const int64_t* of_row, int64_t rows, int64_t size, int64_t work);

  // Whether products are large enough for calls, and all rows have such a group.
  bool pay() const { return pay_; }

  const Part* begin() const { return parts_.data(); }
  const Part* end() const { return parts_.data() + parts_.size(); }

  // The rows sorted by group, each group's in their order; empty where they are in that already.
  const std::vector<int64_t>& order() const { return order_; }

 private:
  bool pay_ = false;
  std::vector<Part> parts_;
  std::vector<int64_t> order_;
};

#pragma GCC visibility pop

}  // namespace loma

#endif  // LOMA_GROUPS_H
