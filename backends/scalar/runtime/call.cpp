#include "call.h"

#include "values.h"

#include <algorithm>
#include <cstring>

namespace loma {

std::string Place::text() const {
  if (outer == nullptr) {
    return *name;
  }
  return outer->text() + (name != nullptr ? "." + *name : "[" + std::to_string(index) + "]");
}

void* Arena::bytes(std::size_t size) {
  size = (size + 15) / 16 * 16;
  if (size <= sizeof small_ - used_) {
    void* const memory = small_ + used_;
    used_ += size;
    return std::memset(memory, 0, size);
  }
  large_.push_back(std::make_unique<std::max_align_t[]>(size / sizeof(std::max_align_t) + 1));
  return large_.back().get();
}

Call::~Call() {
  for (Py_buffer* buffer : buffers) {
    PyBuffer_Release(buffer);
  }
  for (PyObject* object : kept_) {
    Py_DECREF(object);
  }
}

void Call::fail(PyObject* kind, const Place& place, const std::string& text) const {
  raise(kind, function.name + ": argument '" + place.text() + "' " + text);
}

PyObject* Call::keep(PyObject* object) {
  if (object == nullptr) {
    throw py::error_already_set();
  }
  kept_.push_back(object);
  return object;
}

void Call::note(const Place& place, const void* begin, std::size_t size, bool written) {
  if (function.writes && size != 0) {
    const auto* first = static_cast<const char*>(begin);
    ranges_.push_back({first, first + size, &place.argument(), written});
  }
}

void Call::fail_overlap(const Range& first, const Range& second) const {
  const std::string& a = *first.argument;
  const std::string& b = *second.argument;
  if (a != b) {
    raise(PyExc_ValueError, function.name + ": arguments '" + std::min(a, b) + "' and '" +
                                std::max(a, b) + "' share memory, and '" +
                                (second.written ? b : a) + "' is written");
  }
  const bool is_object = first.end - first.begin == 1;
  raise(PyExc_ValueError, function.name + ": argument '" + a + "' is written, but " +
                              (is_object ? "the same object is in it twice"
                                         : "parts of it share memory"));
}

void Call::check_overlaps() {
  if (ranges_.size() < 2) {
    return;
  }
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* last = nullptr;     // of those so far, the one that reaches furthest
  const Range* written = nullptr;  // and of those that are written
  for (const Range& range : ranges_) {
    const Range* other = range.written ? last : written;
    if (other != nullptr && range.begin < other->end) {
      fail_overlap(*other, range);
    }
    if (last == nullptr || range.end > last->end) {
      last = &range;
    }
    if (range.written && (written == nullptr || range.end > written->end)) {
      written = &range;
    }
  }
}

void Call::write_back() {
  for (const WriteBack& item : write_backs) {
    if (item.how == WriteBack::How::Copy) {
      std::memcpy(item.memory, item.words, item.type->words * sizeof(Word));
      continue;
    }
    py::object value = to_python(*item.type, item.words);
    const int status = item.how == WriteBack::How::Attribute
                           ? PyObject_SetAttr(item.owner, item.name, value.ptr())
                           : PyList_SetItem(item.owner, item.index, value.release().ptr());
    if (status != 0) {
      throw py::error_already_set();
    }
  }
}

}  // namespace loma
