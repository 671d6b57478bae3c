"""The words of the language as Python names, for programs that stand in Python files::

    from loma import In, Tensor, names, softmax

    B, N, i = names("B N i")

A program is read, never run, and needs none of them; editors, linters and type checkers do. Python
may evaluate them (annotations of a class body, decorators, ``rev_diff(f)``): what comes out of that
is again a word, which prints as it was written. Type checkers see ``Any``.
"""

from __future__ import annotations

import keyword
from typing import Any, NoReturn

# As long as no word is asked for, nothing of the compiler is imported: hence lists, which a test
# compares with the compiler's own.
TYPES = frozenset(
    ("Array", "BoolTensor", "Diff", "In", "IntTensor", "Out", "Tensor", "TorchTensorFloat")
)
DECLARATIONS = frozenset(("derivative", "fwd_diff", "rev_diff", "simd"))
_FUNCTIONS = """
    acos add amax amax_or_zero amin argmax argmin argsort asin atan atan2 atomic_add
    avg_pool2d avg_pool2d_input cat ceil clamp conv1d conv2d conv2d_input conv2d_weight conv3d
    conv3d_input conv3d_weight conv_transpose2d cos cosh cumprod cumsum digamma div elu eq erf
    erfc exp exp2 expand expand_like expm1 flip float2int floor floordiv from_rows_like gather
    ge gelu gt int2float isfinite isnan layer_norm le leaky_relu lgamma linear log log1p log2
    log_softmax logsumexp lt matmul max_pool2d max_pool2d_index mean mod moved mul mul_no_nan
    ne neg no_diff norm one_hot ones ones_like permute polygamma prod relu reshape
    reshape_like roll rsqrt scan scatter_add scatter_add_like sigmoid sign silu sin sinh
    slice_into softmax softplus sqrt stack std sub sum_to sum_to_like tan tanh thread_id
    to_rows transpose tril triu unreduce_like var where zero_pad zeros zeros_like
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())


class Word:
    """A word, or what is written with words, in the language's own text."""

    def __init__(self, text: str, level: int = 9, wrapped: object = None) -> None:
        self._text, self._level = text, level
        if wrapped is not None:
            self.__wrapped__ = wrapped  # what inspect looks for behind a decorator

    def __repr__(self) -> str:
        return self._text

    def __getitem__(self, items: object) -> Word:
        parts = items if isinstance(items, tuple) else (items,)
        return Word(f"{_inside(self, 9)}[{', '.join(map(_text, parts))}]")

    def __call__(self, *args: object, **options: object) -> Word:
        if self._text.partition("(")[0] not in DECLARATIONS:
            _refuse(self._text)
        shown = [_text(arg) for arg in args]
        shown += [f"{name}={_text(value)}" for name, value in options.items()]
        return Word(f"{self._text}({', '.join(shown)})", wrapped=next(filter(callable, args), None))

    def __neg__(self) -> Word:
        return Word(f"-{_inside(self, 7)}", 7)

    def __iter__(self) -> NoReturn:
        _refuse(self._text)

    def __bool__(self) -> NoReturn:
        _refuse(self._text)


def _text(part: object) -> str:
    return getattr(part, "__name__", None) or repr(part)


def _inside(part: object, level: int) -> str:
    """Between brackets where it binds less than ``level``."""
    text = _text(part)
    return f"({text})" if isinstance(part, Word) and part._level < level else text


def _binary(symbol: str, level: int) -> tuple[Any, Any]:
    def left(self: Word, other: object) -> Word:
        return Word(f"{_inside(self, level)} {symbol} {_inside(other, level + 1)}", level)

    def right(self: Word, other: object) -> Word:
        return Word(f"{_inside(other, level)} {symbol} {_inside(self, level + 1)}", level)

    return left, right


for _name, _symbol, _level in (
    ("add", "+", 5), ("sub", "-", 5), ("mul", "*", 6), ("truediv", "/", 6), ("floordiv", "//", 6),
    ("mod", "%", 6), ("pow", "**", 8),
):  # fmt: skip
    _left, _right = _binary(_symbol, _level)
    setattr(Word, f"__{_name}__", _left)
    setattr(Word, f"__r{_name}__", _right)


def _refuse(text: str) -> NoReturn:
    raise TypeError(
        f"'{text}' is part of a loma program, which Python reads but does not run: write it in a "
        "function under @loma.module, or in a .loma file"
    )


def word(name: str) -> Word | None:
    """The word of that name; None where the language has none, or Python has the same."""
    known = name in TYPES or name in DECLARATIONS or name in FUNCTIONS
    return Word(name) if known else None


def names(text: str) -> Any:
    """Names of sizes and indices, separated by blanks or commas: ``B, N, i = loma.names("B N i")``.

    One name alone comes by itself. ValueError for what is no name.
    """
    found = text.replace(",", " ").split()
    wrong = [name for name in found if not name.isidentifier() or keyword.iskeyword(name)]
    if wrong or not found:
        raise ValueError(
            "loma.names takes names, as in loma.names('B N i'); "
            + (f"'{wrong[0]}' is none" if wrong else "there is none")
        )
    words = tuple(map(Word, found))
    return words if len(words) > 1 else words[0]
