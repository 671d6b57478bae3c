#include "types.h"

#include <algorithm>

namespace loma {

void raise(PyObject* kind, const std::string& text) {
  PyErr_SetString(kind, text.c_str());
  throw py::error_already_set();
}

const Type* Types::add(Type type) {
  types_.push_back(std::move(type));
  Type& added = types_.back();
  added.leaf = added.kind == Type::Kind::Array ? added.element->leaf : &added;
  return &added;
}

void Types::add_struct(const std::string& name, py::object make, const py::sequence& members) {
  Type type;
  type.kind = Type::Kind::Struct;
  type.text = name;
  type.words = 0;
  type.make = std::move(make);
  for (const auto& item : members) {
    const auto member = py::reinterpret_borrow<py::sequence>(item);
    const auto text = member[0].cast<std::string>();
    const auto label = py::reinterpret_steal<py::str>(PyUnicode_InternFromString(text.c_str()));
    const Type* const part = this->type(member[1]);
    type.words = (type.words + part->align - 1) / part->align * part->align;
    type.members.push_back({label, text, part, type.words});
    type.words += part->words;
    type.align = std::max(type.align, part->align);
    type.open |= part->open;
  }
  if (type.members.empty()) {
    type.words = 1;  // C has no empty structs: the generated one has an int
  }
  type.words = (type.words + type.align - 1) / type.align * type.align;
  structs_[name] = add(std::move(type));
}

const Type* Types::type(const py::sequence& description) {
  const auto kind = description[0].cast<std::string>();
  if (kind == "struct") {
    return structs_.at(description[1].cast<std::string>());
  }
  Type type;
  type.text = kind;
  type.kind = kind == "int" ? Type::Kind::Int : Type::Kind::Float;
  if (kind != "array") {
    return add(std::move(type));
  }
  type.kind = Type::Kind::Array;
  type.element = this->type(description[1]);
  type.rank = 1 + type.element->rank;
  type.words = sizeof(Slice) / sizeof(Word);
  type.align = alignof(Slice) / sizeof(Word);
  type.sized = false;
  type.open = true;
  type.text = "Array[" + type.element->text;
  if (const py::object size = description[2]; !size.is_none()) {
    type.size = size.cast<std::int64_t>();
    type.words = static_cast<std::size_t>(type.size) * type.element->words;
    type.align = type.element->align;
    type.sized = type.element->sized;
    type.open = type.element->open;
    type.text += ", " + std::to_string(type.size);
  }
  type.text += "]";
  return add(std::move(type));
}

}  // namespace loma
