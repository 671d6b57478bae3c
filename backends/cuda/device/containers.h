// Arrays, stacks and several results as scalar functions have them on a device: what they use of
// std::array, std::vector and std::tuple. All of it lies in a thread's own memory; only a stack that
// grows takes of the device's heap. The names <array>, <tuple> and their like stand for this file.
#pragma once

#include "std.h"

namespace std {

template <typename type>
struct remove_const {
  using here = type;
};

template <typename type>
struct remove_const<const type> {
  using here = type;
};

template <typename type>
using remove_const_t = typename remove_const<type>::here;

// There is always an element, so that a subscript outside has a place to go.
template <typename type, size_t count>
struct array {
  type elements_[count == 0 ? 1 : count];

  static constexpr size_t size() { return count; }
  type* data() { return elements_; }
  const type* data() const { return elements_; }
  type& operator[](int64_t i) { return elements_[i]; }
  const type& operator[](int64_t i) const { return elements_[i]; }
};

template <typename... types>
struct tuple;

template <>
struct tuple<> {
  template <typename other>
  void take(const other&) {}
};

template <typename first, typename... rest>
struct tuple<first, rest...> {
  first head_;
  tuple<rest...> tail_;

  tuple(first head, rest... tail) : head_(head), tail_{tail...} {}

  template <typename other>
  void take(const other& from) {
    head_ = from.head_;
    tail_.take(from.tail_);
  }

  // Of a tie(...): what it refers to becomes the results.
  template <typename... others>
  void operator=(const tuple<others...>& from) {
    take(from);
  }
};

template <typename... types>
tuple<types&...> tie(types&... places) {
  return {places...};
}

// A stack. Its first elements are its own; `reserve` is false where the device has no memory for
// more. Elements are numbers and structs of them, which are copied as they are.
template <typename type>
class vector {
 public:
  vector() = default;
  vector(const vector&) = delete;
  vector& operator=(const vector&) = delete;
  ~vector() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  type& back() { return data_[size_ - 1]; }
  void pop_back() { --size_; }

  bool reserve(size_t wanted) {
    if (wanted <= capacity_) return true;
    const size_t more = wanted < 2 * capacity_ ? 2 * capacity_ : wanted;
    type* const made = static_cast<type*>(malloc(more * sizeof(type)));
    if (made == nullptr) return false;
    for (size_t i = 0; i < size_; ++i) made[i] = data_[i];
    release();
    data_ = made, capacity_ = more;
    return true;
  }

  void push_back(const type& value) { data_[size_++] = value; }

 private:
  static constexpr size_t kOwn = sizeof(type) < 64 ? 256 / sizeof(type) : 4;

  void release() {
    if (data_ != own_) free(data_);
  }

  type own_[kOwn]{};
  type* data_ = own_;
  size_t size_ = 0, capacity_ = kOwn;
};

}  // namespace std
