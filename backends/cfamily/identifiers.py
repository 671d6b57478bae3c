"""What C and C++ have in common: words that are no names, string literals, and comments."""

from __future__ import annotations

import re

from loma.errors.excerpts import one_line

CPP_KEYWORDS = frozenset(
    """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires return short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true try
typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
""".split()  # noqa: SIM905
)

# Built-in functions that the C library and std:: have by the same name.
MATH = frozenset(
    """
sin cos tan asin acos atan atan2 sinh cosh tanh exp expm1 exp2 log log1p log2 sqrt pow erf erfc
floor ceil
""".split()  # noqa: SIM905
)


def c_string(text: str) -> str:
    """A string literal (UTF-8)."""
    out = []
    for byte in text.encode():
        character = chr(byte)
        if character in '"\\':
            out.append("\\" + character)
        elif 32 <= byte < 127 and character != "?":
            out.append(character)
        else:
            out.append(f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def file_stem(name: str) -> str:
    """A module's name as part of a C identifier and of a file's name: not empty, and short."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name)[:64].strip("_") or "module"


def comment(text: str) -> str:
    """Text for one line of a comment that begins with ``//``: it never ends the line, nor carries
    the comment on to the next one, as a backslash at its end (or ``??/``) does."""
    return one_line(text).replace("??/", "?? /").rstrip(" \\")
