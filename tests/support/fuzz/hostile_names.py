"""Names and files' names that mean something where generated text goes."""

from __future__ import annotations

import keyword
import random
import unicodedata
from collections.abc import Iterator

from loma.core.builtins import BUILTINS

_WORDS = """
new template class_ float_ double short long char union goto register restrict inline extern typeof
asm auto constexpr consteval nullptr namespace operator using virtual typename decltype alignas
concept requires co_await co_return char8_t bitand xor_eq compl signed unsigned sizeof static switch
typedef void volatile wchar_t this throw catch friend mutable private public protected explicit
export delete struct_ case_ do std at c10 loma torch pybind11 tensors ints real size_t int64_t
uint8_t ptrdiff_t jmp_buf NULL NAN INFINITY EOF errno stdin stdout stderr assert main environ linux
unix i386 I complex _Complex _Bool _Static_assert __int128 __x x__ _X _ __ ___ self cls out out1
dtype device Ellipsis NoneType inf nan Float Int Optional List Scalar SymInt quoted isnan isfinite
signbit offsetof setjmp _setjmp longjmp major minor makedev alloca SYS_read P_tmpdir M_PIf M_PI
C10_DECLARE_bool TORCH_CHECK AT_ASSERT CHECK LOG CHAR_WIDTH FP_FAST_FMA LINE_MAX SNAN iszero _rotl
pthread_cleanup_push omp_get_num_threads GOMP_parallel _init _fini _start _end _edata end edata
etext _exit abort read times sincos sincosf malloc free calloc memcpy memset printf exp_ sinf fabs
pow_ min_ loma_fail loma_at loma_entry_f loma_slots loma_results slots results result result_
value_0 arguments args kwargs size data numel begin item items first failure start chunk chunks grad
need saved i j k n m p e d t axis_0 argument_0 argument_1 argument_2 f__body f__scalar f__kernel
f__run f__loop1 f_body f_chunk f_results x_ y_size0_ u_new u_newz u3bb_ z zz uz lanes mask count
total block_ row_ thread tile step Vec Row Span Probe Module Function λ π ñ 名前 ﬁ x́ Ⅷ µ ª
""".split()  # noqa: SIM905
# What Python takes for a name: a letter of a ligature, say, is its letters there.
NAMES = [
    name
    for name in dict.fromkeys(unicodedata.normalize("NFKC", word) for word in _WORDS)
    if name.isidentifier() and not keyword.iskeyword(name) and name not in BUILTINS
]
# Most of them would end a line, a comment or a string, or go on in the next line.
_PIECES = [
    "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\x1b[2J", "\\",
    "??/", "*/", "/*", "//", '"', "'", "`", "$(exit 1)", "%s%n", "{{ 1 / 0 }}", "{% raw %}", "{#",
    "#error", "\u202e", "\ud800", "\udcff", " ", ".", "int injected;", "#include", "λ", "名",
    "a" * 70, "-o",
]  # fmt: skip


def text_of_pieces(rng: random.Random) -> str:
    """A text that no generated file may be changed by."""
    return "".join(rng.choices(_PIECES, k=rng.randint(1, 5)))


def file_name(rng: random.Random) -> str:
    """The same as what a file can be called."""
    wanted = text_of_pieces(rng)
    allowed = "".join(c for c in wanted if c not in "/\0" and not "\ud800" <= c < "\udc80")
    return f"{allowed}.loma"


# Roles of names, those of the file's level first.
_GLOBAL = ("S", "h", "f")
_ROLES = ("m", "q", "v", "w", "c", "a", "b", "r", "x", "y", "i", "j", "t", "s", "z", "N", "M")

SCALAR_PART = """
class {S}:
    {m} : float
    {q} : Array[float, 2]

def {h}({v} : In[float]) -> float:
    {w} : {S}
    {c} : int
    while ({c} < 2, max_iter := 3):
        {w}.{q}[{c}] = {v}
        {c} += 1
    {w}.{m} = {v}
    return {w}.{m} * {w}.{q}[1]
"""
# a * x + 2 * (a * a) for an array and a number, through calls, a struct and several results
SCALAR_FUNCTION = """
def {f}({a} : In[Array[float]], {x} : In[float], {r} : In[int], {z} : Out[Array[float]]) -> float:
    {s} : float
    {y} : float
    for {i} in range({r}):
        {y} = {a}[{i}] * {x}
        {z}[{i} // 1] = {y} + 2.0 * {h}({a}[{i}])
        {s} += {z}[{i}]
    return {s}
"""
# the same in a tensor function, with what an index statement sums over
TENSOR_FUNCTION = """
def {f}({a} : In[Tensor[{N}]], {b} : In[Tensor[{N}, {M}]], {r} : In[int], {x} : In[float]) -> Tensor[{N}]:
    {y} : Tensor[{N}]
    {y}[{i}] = {a}[{i}] * {x} + sum({b}[{i}, {j}] for {j} in {M})
    for {t} in range({r}):
        {y}[{i}] = {y}[{i}] + {h}({a}[{i}])
    {s} : float = 2.0
    {z} : Tensor[{N}]
    {z}[{i}] = {y}[{i}] * {s}
    return {z}
"""  # noqa: E501


def programs(rng: random.Random, count: int, function: str) -> Iterator[tuple[str, str]]:
    """Texts of functions with hostile names in every role, and the functions' names."""
    names = iter(rng.sample(NAMES, 3 * count))
    for _ in range(count):
        used = {role: next(names) for role in _GLOBAL}
        local = rng.sample(sorted(set(NAMES) - set(used.values())), len(_ROLES))
        used |= dict(zip(_ROLES, local, strict=True))
        yield (SCALAR_PART + function).format(**used), used["f"]
