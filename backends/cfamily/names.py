"""C++ names: any Python identifier becomes a name that is safe in generated code.

Names that the generator itself makes end in ``_``, or in ``__body`` and the like; a program's names
never do after :func:`cpp_name`, so the two cannot clash.
"""

from __future__ import annotations

import re

from loma.backends.cfamily.identifiers import CPP_KEYWORDS
from loma.backends.cfamily.identifiers import c_string as cpp_string

__all__ = ["cpp_name", "cpp_string", "local_name"]

# Names that generated code uses, macros of the C library and of torch that look like variables, and
# words of torch's language of schemas, which has the names of functions, too.
_TAKEN = frozenset(
    """
real at c10 std loma torch pybind11 tensors ints int64_t uint64_t size_t main
NAN EOF LOG EIO NULL CHECK DCHECK VLOG stdin stdout stderr errno assert assert_perror
alloca offsetof timeradd timersub timercmp timerclear timerisset issubnormal iscanonical
strdupa strndupa math_errhandling MaxTypeIndex sched_priority unix linux i386 major minor makedev
htobe16 htobe32 htobe64 htole16 htole32 htole64 be16toh be32toh be64toh le16toh le32toh le64toh
sa_handler sa_sigaction sigmask isnan isinf isfinite isnormal signbit fpclassify isgreater isless
setjmp bcopy bzero inf nan Ellipsis NoneType
""".split()  # noqa: SIM905
)

_NUMBERED = re.compile(r"[A-Z]{1,2}(_\d+)+$")
# Families of macros: of the C library, of torch, and of the processor's intrinsics.
_MACRO = re.compile(
    r"(SYS|C10|TORCH|AT|CAFFE2|PYBIND11)_|M_[A-Z\d]|[LP]_[a-z]{6,}$|pthread_cleanup_"
    r"|_(mm\d*|cmpccxadd|bit_scan|bswap|cvt|k[a-z]+_mask|l?rot|m_p|popcnt|rd(pmc|tsc)|tile|xabort)"
)
_GENERATED = re.compile(r"__(body|run|kernel|scalar|struct|loop\d*)$")

_RESERVED = CPP_KEYWORDS | _TAKEN


def cpp_name(name: str) -> str:
    """A C++ identifier for a Python identifier; different names give different identifiers.

    Most names stay as they are. Keywords, macros, names that the C++ standard reserves and names
    that are not ASCII become ``u_`` and their letters, with ``zHEXz`` for what is not one.
    """
    if _is_plain(name):
        return name
    return "u_" + "".join(_escape(c) for c in name) + "z"


def local_name(name: str) -> str:
    """A variable of a loop tree: one that lowering has made begins with @ and ends with _."""
    made = name.removeprefix("@")
    return made if made != name and made.isascii() else cpp_name(made)


def _is_plain(name: str) -> bool:
    return (
        name.isascii()
        and name not in _RESERVED
        and not name.startswith("u_")
        and not name.endswith("_")
        and not name.startswith("__")
        and not _MACRO.match(name)
        and not _GENERATED.search(name)
        and not (name.startswith("_") and name[1:2].isupper())
        # Longer names in capitals may be macros of some system header; C_1 is not.
        and not (name.isupper() and len(name) > 2 and not _NUMBERED.match(name))
    )


def _escape(character: str) -> str:
    if character.isascii() and character.isalnum() and character != "z":
        return character
    return f"z{ord(character):x}z"
