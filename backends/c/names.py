"""C names: any Python identifier becomes a name that is safe in the generated file.

Most names stay as they are. A keyword of C or C++, a name of the C library or of a compiler's
built-in function, and a name that C reserves get an underscore at their end (``new_``); letters
that are not ASCII are spelt by their number (``u3bb_``). What the generator adds begins with
``loma_``, or is fresh among the names around it.

Some names would be taken without a warning: a function ``sincosf`` for the one that gcc calls where
a program takes both, ``GOMP_parallel`` for OpenMP's, ``_end`` for what the linker defines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from loma.backends.cfamily.identifiers import CPP_KEYWORDS
from loma.core.ir import Module
from loma.core.names import Names

# Macros of the headers that are included, which even a member's name must avoid.
_MACROS = frozenset(
    """
CHAR_BIT CHAR_MAX CHAR_MIN EXIT_FAILURE EXIT_SUCCESS FP_ILOGB0 FP_ILOGBNAN FP_INFINITE FP_NAN
FP_NORMAL FP_SUBNORMAL FP_ZERO HUGE_VAL HUGE_VALF HUGE_VALL INFINITY INT_MAX INT_MIN LLONG_MAX
LLONG_MIN LONG_MAX LONG_MIN MATH_ERREXCEPT MATH_ERRNO MB_CUR_MAX MB_LEN_MAX NAN NULL RAND_MAX
SCHAR_MAX SCHAR_MIN SHRT_MAX SHRT_MIN UCHAR_MAX UINT_MAX ULLONG_MAX ULONG_MAX USHRT_MAX M_E M_LOG2E
M_LOG10E M_LN2 M_LN10 M_PI M_PI_2 M_PI_4 M_1_PI M_2_PI M_2_SQRTPI M_SQRT2 M_SQRT1_2 BIG_ENDIAN
LITTLE_ENDIAN PDP_ENDIAN BYTE_ORDER PATH_MAX PIPE_BUF NAME_MAX DOMAIN SING OVERFLOW UNDERFLOW
fpclassify isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan isnormal
isunordered math_errhandling signbit alloca linux unix i386 errno setjmp assert offsetof va_arg
stdin stdout stderr sigsetjmp strdupa strndupa iscanonical iseqsig issignaling issubnormal iszero
be16toh be32toh be64toh htobe16 htobe32 htobe64 htole16 htole32 htole64 le16toh le32toh le64toh
AIO_PRIO_DELTA_MAX BC_BASE_MAX BC_DIM_MAX BC_SCALE_MAX BC_STRING_MAX BOOL_MAX BOOL_WIDTH
CHARCLASS_NAME_MAX CHAR_WIDTH COLL_WEIGHTS_MAX DELAYTIMER_MAX EXPR_NEST_MAX FD_CLR FD_ISSET FD_SET
FD_SETSIZE FD_ZERO FP_FAST_FMA FP_FAST_FMAF FP_INT_DOWNWARD FP_INT_TONEAREST
FP_INT_TONEARESTFROMZERO FP_INT_TOWARDZERO FP_INT_UPWARD FP_LLOGB0 FP_LLOGBNAN HOST_NAME_MAX
INT_WIDTH IOV_MAX LINE_MAX LLONG_WIDTH LOGIN_NAME_MAX LONG_BIT LONG_LONG_MAX LONG_LONG_MIN
LONG_WIDTH MAXFLOAT MAX_CANON MAX_INPUT MQ_PRIO_MAX NFDBITS NGROUPS_MAX NL_ARGMAX NL_LANGMAX
NL_MSGMAX NL_NMAX NL_SETMAX NL_TEXTMAX NZERO PTHREAD_DESTRUCTOR_ITERATIONS PTHREAD_KEYS_MAX
PTHREAD_STACK_MIN RE_DUP_MAX RTSIG_MAX SCHAR_WIDTH SEM_VALUE_MAX SHRT_WIDTH SSIZE_MAX TTY_NAME_MAX
UCHAR_WIDTH UINT_WIDTH ULLONG_WIDTH ULONG_LONG_MAX ULONG_WIDTH USHRT_WIDTH WCONTINUED WEXITED
WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG WNOWAIT WORD_BIT WSTOPPED
WSTOPSIG WTERMSIG WUNTRACED XATTR_LIST_MAX XATTR_NAME_MAX XATTR_SIZE_MAX
""".split()  # noqa: SIM905
)
# And those of numbers in further precisions: M_PIf, HUGE_VAL_F128, SNANL.
_NUMBERS = re.compile(r"M_[A-Z0-9_]+(l|f\d*x?)|HUGE_VAL_F\d+X?|SNAN(L|F\d*X?)?")

# Functions and types of the C library: a function of such a name would take the library's place.
_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim
floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb
lrint lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn
sin sinh sqrt tan tanh tgamma trunc cabs cacos cacosh carg casin casinh catan catanh ccos ccosh cexp
cimag clog conj cpow cproj creal csin csinh csqrt ctan ctanh
""".split()  # noqa: SIM905
_LIBRARY = frozenset(
    """
_Exit abort abs atexit atof atoi atol atoll bsearch calloc div exit free getenv labs ldiv llabs
lldiv malloc mblen mbstowcs mbtowc qsort rand rand_r realloc srand strtod strtof strtol strtold
strtoll strtoul strtoull system wcstombs wctomb memchr memcmp memcpy memmove memset strcat strchr
strcmp strcoll strcpy strcspn strerror strlen strncat strncmp strncpy strpbrk strrchr strspn strstr
strtok strtok_r strxfrm longjmp sigsetjmp siglongjmp feclearexcept fegetenv fegetexceptflag
fegetround feholdexcept feraiseexcept fesetenv fesetexceptflag fesetround fetestexcept feupdateenv
fprintf fputc fputs fscanf fwrite printf putc putchar puts scanf snprintf sprintf sscanf vfprintf
vfscanf vprintf vscanf vsnprintf vsprintf vsscanf fopen fclose fflush fread remove rename imaxabs
isalnum isalpha isblank iscntrl isdigit isgraph islower isprint ispunct isspace isupper isxdigit
tolower toupper iswalnum iswalpha iswblank iswcntrl iswdigit iswgraph iswlower iswprint iswpunct
iswspace iswupper iswxdigit towlower towupper strftime gamma gammaf signgam j0 j1 jn y0 y1 yn
bcmp bcopy bzero index rindex read write open close fork main environ signal raise time clock sleep
size_t ptrdiff_t wchar_t div_t ldiv_t lldiv_t float_t double_t jmp_buf sigjmp_buf int8_t int16_t
int32_t int64_t uint8_t uint16_t uint32_t uint64_t FILE bool true false complex I
sincos sincosf sincosl _setjmp _longjmp _exit _init _fini _start _end _edata
""".split()  # noqa: SIM905
) | {name + suffix for name in _MATH for suffix in ("", "f", "l")}
# What the generated code may call, which no variable may hide.
_CALLED = frozenset(name + suffix for name in _MATH for suffix in ("", "f")) | {
    "memcpy", "memmove", "memset", "setjmp", "_setjmp",
}  # fmt: skip

# Macros and variables of CUDA, and of the headers of its kernels.
_CUDA = {"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "INT64_MAX", "INT64_MIN"}
_WORDS = CPP_KEYWORDS | {"restrict", "typeof"} | _MACROS | _CUDA


def _wish(name: str, avoided: frozenset[str]) -> str:
    """The name itself, or what stands for it."""
    reserved = name.startswith(("__", "loma_", "omp_", "GOMP_")) or (
        (name[0] == "_" and name[1:2].isupper()) or _NUMBERS.fullmatch(name)
    )
    if name.isascii() and not reserved and name not in avoided:
        return name
    letters = "".join(c if c.isascii() else f"u{ord(c):x}" for c in name)
    if letters.startswith("_"):
        letters = letters.lstrip("_") or "u"
    if letters.startswith("loma_") or letters[0].isdigit():
        letters = f"u_{letters}"
    return f"{letters}_"


class ModuleNames:
    """The names at the level of the file: functions, structs, and structs' members. On a
    ``device``, whose names no list has, those of functions and structs say what they are."""

    def __init__(self, module: Module, device: bool = False) -> None:
        avoided = _WORDS | _LIBRARY
        # Names that stay come first, so that a replacement never takes one of them.
        functions = {f.name for f in module.functions}
        plain = [*functions, *(s.name for s in module.structs)]
        names = Names(name for name in plain if _wish(name, avoided) == name and not device)
        self.file = names

        def chosen(name: str, kind: str, others: Collection[str] = ()) -> str:
            if device:
                return names.fresh(f"{_wish(name, avoided)}__{kind}")
            return _chosen(names, name, avoided, others)

        # A differential type may have the name of a function, which in C is the function's.
        self.structs = {s.name: chosen(s.name, "struct", functions) for s in module.structs}
        self.functions = {f.name: chosen(f.name, "scalar") for f in module.functions}
        self.members = {
            s.name: distinct((name for name, _ in s.members), _WORDS) for s in module.structs
        }


def distinct(names: Iterable[str], avoided: frozenset[str]) -> dict[str, str]:
    """Safe C names by loma names, all different."""
    wanted = list(dict.fromkeys(names))
    taken = Names([*avoided, *(name for name in wanted if _wish(name, avoided) == name)])
    return {name: _chosen(taken, name, avoided) for name in wanted}


def _chosen(taken: Names, name: str, avoided: frozenset[str], others: Collection[str] = ()) -> str:
    """The name itself, which is taken for it, unless one of ``others`` has it."""
    wish = _wish(name, avoided)
    return name if wish == name and name not in others else taken.fresh(wish)


def local_names(wanted: Iterable[str], used: Iterable[str]) -> tuple[dict[str, str], Names]:
    """C names of a function's variables, and the names for what the generator adds.

    ``used`` are names of the file's level that the function mentions: no variable may hide them.
    """
    avoided = _WORDS | _CALLED | frozenset(used)
    found = distinct(wanted, avoided)
    return found, Names([*found.values(), *avoided])
