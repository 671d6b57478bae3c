"""Runs one function three ways: interpreter, libtorch and a reference in plain PyTorch.

The signature of a derivative follows the language's convention: each ``In`` argument is followed by
its adjoint as ``Out``, each ``Out`` argument is replaced by its adjoint, and each result adds its
adjoint at the end.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from index_cases import Case

import loma
from loma.ad import SplitPair, differentiate, split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.ir import Function, IntType, TensorType, Type
from loma.core.verify import verify
from loma.frontend import parse
from loma.packed_calls import flat

Tensors = tuple[torch.Tensor, ...]
STEP = 1e-6


@contextlib.contextmanager
def doubles_first() -> Iterator[None]:
    """Of the default dtype is what is compiled with a module; another's kernels come behind it."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def compiled(source: Any, **options: Any) -> loma.LomaModule:
    """``loma.compile`` for tests whose tensors are doubles."""
    with doubles_first():
        return loma.compile(source, **options)


class Program:
    """Texts, each ending in the function under test, with ``d_f = rev_diff(f)`` for each of these
    and ``dd_f = rev_diff(d_f)``.

    The interpreter has them all. What is compiled is, beside what autograd runs, ``d_f`` of those
    in ``first`` (None: of all) and ``dd_f`` of those in ``second``, which are in ``first``, too.
    Several texts are compiled as two modules, at the same time; with ``compiles`` (None: all) only
    those whose functions are in it.
    """

    def __init__(
        self,
        texts: Sequence[str],
        second: Collection[str] = (),
        *,
        first: Collection[str] | None = None,
        derivatives: bool = True,
        compiles: Collection[str] | None = None,
    ) -> None:
        self.second = frozenset(second)
        self.compiles = frozenset(map(entry, texts) if compiles is None else compiles)
        if not derivatives:
            self.first: frozenset[str] = frozenset()
            self.parts = list(texts)
            self.text = self.all_text = "\n".join(texts)
            return
        names = [entry(text) for text in texts]
        self.first = frozenset(names if first is None else [*first, *second])
        own = [text for text in texts if entry(text) in self.compiles]
        halves = (own[0::2], own[1::2])
        self.parts = ["\n".join(map(self._with_derivatives, half)) for half in halves if half]
        wanted = [line for name in names for line in (_request("", name), _request("d", name))]
        self.text = "\n".join(map(self._with_derivatives, texts))
        self.all_text = "\n".join([self.text, *(line for line in wanted if line not in self.text)])

    def _with_derivatives(self, text: str) -> str:
        name = entry(text)
        once = _request("", name) if name in self.first else ""
        return f"{text}\n{once}{_request('d', name) if name in self.second else ''}"

    @functools.cached_property
    def interpreter(self) -> Interpreter:
        module = differentiate(parse(self.all_text))
        verify(module)
        return Interpreter(module)

    @functools.cached_property
    def _modules(self) -> list[Any]:
        with doubles_first():
            return loma.compile_many(self.parts)

    def compiled(self, name: str) -> Any:
        """The function that libtorch runs, of members where the program has structs."""
        return flat(next(getattr(m, name) for m in self._modules if name in dir(m)))

    @functools.cached_property
    def _split(self) -> tuple[Interpreter, dict[str, SplitPair]]:
        module, pairs = split_pairs(parse(self.text))
        verify(module)
        return Interpreter(module), {pair.primal: pair for pair in pairs}

    def function(self, name: str) -> Function:
        return self.interpreter.module.function(name)

    # ----------------------------------------------------------------------------- interpreter

    def value(self, name: str, args: Sequence[Any]) -> tuple[Any, ...]:
        return self.interpreter.call(name, *map(plain, args))

    def _adjoint_call(
        self, name: str, args: Sequence[Any], weights: Sequence[Any], prefix: str
    ) -> tuple[list[Any], list[bool]]:
        """Arguments of a derivative, adjoints to add to being zero, and which of those are floats.

        ``weights`` are the adjoints of the results, then of the Out arguments' final values.
        """
        primal, adjoint = self.function(name), self.function(prefix + name)
        values = iter(args)
        results, outs = weights[: len(primal.results)], iter(weights[len(primal.results) :])
        given: list[Any] = []
        kept: list[bool] = []
        params = list(adjoint.params)
        for param in primal.params:
            value = next(values)
            own = params.pop(0)
            if param.mode == "Out":
                assert own.mode == "In"
                given.append(next(outs))
                continue
            given.append(value)
            if params and params[0].mode == "Out":
                given.append(zero(value))
                kept.append(is_float(params.pop(0).type))
        assert all(own.mode == "In" for own in params)
        assert len(params) == len(results)
        return [*given, *results], kept

    def adjoint(
        self, name: str, args: Sequence[Any], weights: Sequence[Any], prefix: str = "d_"
    ) -> tuple[Any, ...]:
        """The adjoints of the float ``In`` arguments, by the interpreter."""
        given, kept = self._adjoint_call(name, args, weights, prefix)
        outs = self.interpreter.call(prefix + name, *map(plain, given))
        return tuple(out for out, keep in zip(outs, kept, strict=True) if keep)

    def compiled_adjoint(
        self, name: str, args: Sequence[Any], weights: Sequence[Any], prefix: str = "d_"
    ) -> tuple[Any, ...]:
        """The same by libtorch, which takes the ``In`` arguments only."""
        given, kept = self._adjoint_call(name, args, weights, prefix)
        params = self.function(prefix + name).params
        ins = [
            int(value) if isinstance(p.type, IntType) else value
            for value, p in zip(given, params, strict=True)
            if p.mode == "In"
        ]
        outs = as_tuple(self.compiled(prefix + name)(*ins))
        return tuple(out for out, keep in zip(outs, kept, strict=True) if keep)

    def split_adjoint(
        self, name: str, args: Sequence[Any], weights: Sequence[Any], wanted: Sequence[int]
    ) -> dict[int, Any]:
        """By the forward and backward functions that serve autograd: the adjoint of each
        argument, by position, of which those in ``wanted`` are asked for."""
        interpreter, pairs = self._split
        pair = pairs[name]
        given = [plain(arg) for arg in args]
        outs = interpreter.call(pair.forward, *given)
        seeds = [plain(weight) for weight in weights]
        values = given_backward(pair, self.function(name), given, outs, seeds, wanted)
        adjoints = interpreter.call(pair.backward, *values)
        return dict(zip(pair.differentiable, adjoints, strict=True))

    def second_adjoint(
        self, name: str, args: Sequence[Any], weights: Sequence[Any], directions: Sequence[Any],
        compiled: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Gradient of <directions, J^T weights> in the float arguments, then in the weights."""
        given, kept = self._adjoint_call(name, args, weights, "d_")
        outs = [
            value
            for value, p in zip(given, self.function(f"d_{name}").params, strict=True)
            if p.mode == "Out"
        ]
        left = iter(directions)
        along = [next(left) if keep else out for out, keep in zip(outs, kept, strict=True)]
        run = self.compiled_adjoint if compiled else self.adjoint
        return run(f"d_{name}", given, along, prefix="d")


def given_backward(
    pair: SplitPair, primal: Function, given: Sequence[Any], outs: Sequence[Any],
    weights: Sequence[Any], wanted: Collection[int],
) -> list[Any]:  # fmt: skip
    """The arguments of a pair's backward function, after its forward one has given ``outs``."""
    results = len(primal.results) + sum(param.mode == "Out" for param in primal.params)
    values: list[Any] = []
    for source in pair.sources:
        match source.kind:
            case "arg":
                values.append(given[source.index])
            case "result":
                values.append(outs[source.index])
            case "saved":
                values.append(outs[results + source.index])
            case "grad":
                values.append(weights[source.index])
            case "size":
                shown = np.shape(given[source.index])[source.dim]
                values.append((shown - source.offset) // source.scale)
            case "need":
                values.append(int(source.index in wanted))
    return values


def _request(prefix: str, name: str) -> str:
    """The line that asks for the first derivative, or, with the prefix "d", for the second."""
    of = f"{prefix}_{name}" if prefix else name
    return f"d{prefix}_{name} = rev_diff({of})\n"


def entry(text: str) -> str:
    """The name of the function under test: the last one of the text."""
    return text.rsplit("def ", 1)[1].partition("(")[0]


def zero(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)(0)


def is_float(type_: Type) -> bool:
    if isinstance(type_, TensorType):
        return not type_.integer
    return not isinstance(type_, IntType)


def plain(value: Any) -> Any:
    """A tensor as the interpreter takes it."""
    if isinstance(value, torch.Tensor):
        array = value.detach().numpy(force=True)  # also of torch's tensors that are only zeros
        return array.copy() if value.dim() else array.item()
    return value


def differentiable(args: Sequence[Any]) -> list[int]:
    return [k for k, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()]


def close(found: Any, expected: Any, tolerance: float = 1e-9, what: str = "") -> None:
    """Equal up to the tolerance, relative to the largest expected element."""
    found, expected = np.asarray(plain(found)), np.asarray(plain(expected))
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}"
    scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=what)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def jvp(function: Callable[..., Any], point: Any, along: Any) -> tuple[Any, Any]:
    """Results and their derivatives in a direction, by forward mode of torch."""
    results, tangents, *_ = torch.func.jvp(function, point, along)
    return results, tangents


def derivatives(
    function: Callable[..., Any], args: Sequence[Any], weights: Sequence[Any], directions: Any
) -> tuple[Tensors, Tensors, Tensors]:
    """By autograd: results, J^T w, and the gradient of <v, J^T w> in float arguments and weights.

    Where the function does not depend on an argument the gradient is zero.
    """
    where = differentiable(args)
    leaves = [args[k].detach().clone().requires_grad_() for k in where]
    full = list(args)
    for k, leaf in zip(where, leaves, strict=True):
        full[k] = leaf
    results = as_tuple(function(*full))
    own = [w.clone().requires_grad_(w.is_floating_point()) for w in weights]
    pairs = [
        (y, w)
        for y, w in zip(results, own, strict=True)
        if isinstance(y, torch.Tensor) and y.requires_grad
    ]
    first: Any = None
    if pairs:
        first = torch.autograd.grad(
            [y for y, _ in pairs], leaves, [w for _, w in pairs],
            create_graph=True, allow_unused=True,
        )  # fmt: skip
    else:
        first = (None,) * len(leaves)
    live = [(g, v) for g, v in zip(first, directions, strict=True) if g is not None]
    second: Any = None
    of = [*leaves, *(w for w in own if w.requires_grad)]
    if live and any(g.requires_grad for g, _ in live):
        total = sum(((g * v).sum() for g, v in live), torch.zeros((), dtype=torch.float64))
        second = torch.autograd.grad(total, of, allow_unused=True)
    else:
        second = (None,) * len(of)
    return (
        tuple(y.detach() if isinstance(y, torch.Tensor) else y for y in results),
        _or_zero(first, leaves),
        _or_zero(second, of),
    )


def _or_zero(found: Sequence[Any], like: Sequence[torch.Tensor]) -> Tensors:
    return tuple(
        torch.zeros_like(x) if g is None else g.detach() for g, x in zip(found, like, strict=True)
    )


def difference(program: Program, name: str, args: Sequence[Any], along: Sequence[Any]) -> Any:
    """J v by central differences on the interpreter, for every result."""

    def moved(step: float) -> tuple[Any, ...]:
        full = list(args)
        for k, v in zip(differentiable(args), along, strict=True):
            full[k] = args[k] + step * v
        return program.value(name, full)

    ahead, behind = moved(STEP), moved(-STEP)
    return [(a - b) / (2.0 * STEP) for a, b in zip(ahead, behind, strict=True)]


def random_weights(results: Sequence[Any], generator: torch.Generator) -> list[torch.Tensor]:
    """A random adjoint for every float result, zero for the others."""
    weights: list[torch.Tensor] = []
    for result in results:
        array = torch.as_tensor(np.asarray(plain(result)))
        if array.is_floating_point():
            weights.append(torch.randn(array.shape, generator=generator, dtype=torch.float64))
        else:
            weights.append(torch.zeros_like(array))
    return weights


def check(
    program: Program,
    name: str,
    args: Sequence[Any],
    reference: Callable[..., Any],
    *,
    second: bool = True,
    smooth: bool = True,
    libtorch: bool = True,
    tolerance: float = 1e-9,
) -> None:
    """Value, first and second derivatives of one function, all ways against all others.

    ``smooth`` False leaves out the central differences, for points on a kink.
    """
    generator = torch.Generator().manual_seed(7)
    values = program.value(name, args)
    weights = random_weights(values, generator)
    where = differentiable(args)
    along = [torch.randn(args[k].shape, generator=generator, dtype=torch.float64) for k in where]
    expected, first, again = derivatives(reference, args, weights, along)
    assert len(values) == len(expected)
    for k, (value, right) in enumerate(zip(values, expected, strict=True)):
        close(value, right, tolerance, f"interpreter, result {k}")

    found = program.adjoint(name, args, weights) if where else ()
    for k, (value, right) in enumerate(zip(found, first, strict=True)):
        close(value, right, tolerance, f"interpreter, adjoint of argument {where[k]}")
    for wanted in (where, where[:1], where[1:]):
        if where:
            split = program.split_adjoint(name, args, weights, wanted)
            for k, right in zip(where, first, strict=True):
                if k in wanted:
                    close(split[k], right, tolerance, f"interpreter, split, argument {k}")
    if smooth and where:
        tangent = difference(program, name, args, along)
        ahead = sum(float(np.sum(plain(w) * t)) for w, t in zip(weights, tangent, strict=True))
        back = sum(float(np.sum(plain(v) * g)) for v, g in zip(along, found, strict=True))
        scale = max(1.0, abs(ahead), *(float(np.max(np.abs(g), initial=0.0)) for g in found))
        assert abs(ahead - back) <= 1e-6 * scale, f"<Jv, w> = {ahead}, <v, J^T w> = {back}"
    if second and where:
        twice = program.second_adjoint(name, args, weights, along)
        for k, (value, right) in enumerate(zip(twice, again, strict=True)):
            close(value, right, tolerance, f"interpreter, second derivative {k}")
    libtorch = libtorch and name in program.compiles
    if libtorch:
        _check_compiled(program, name, args, reference, tolerance)
    if libtorch and name in program.second:
        twice = program.second_adjoint(name, args, weights, along, compiled=True)
        for k, (value, right) in enumerate(zip(twice, again, strict=True)):
            close(value, right, tolerance, f"libtorch, second derivative {k}")


def check_case(program: Program, case: Case, *, second: bool = True, libtorch: bool = True) -> None:
    """The same of a case, at its own arguments and with what it leaves out."""
    check(
        program, entry(case.text), case.arguments(), case.reference,
        smooth=case.smooth, second=second and case.second, libtorch=libtorch,
    )  # fmt: skip


def _check_compiled(
    program: Program, name: str, args: Sequence[Any], reference: Callable[..., Any],
    tolerance: float,
) -> None:  # fmt: skip
    """Values, gradients by autograd, and, where it is compiled, those of the explicit function."""
    function = program.compiled(name)
    values = as_tuple(function(*args))
    weights = random_weights(values, torch.Generator().manual_seed(8))
    expected, first = gradients(reference, args, weights)
    for k, (value, right) in enumerate(zip(values, expected, strict=True)):
        close(value, right, tolerance, f"libtorch, result {k}")
    where = differentiable(args)
    if not where:
        return
    _, found = gradients(function, args, weights)
    for k, (value, right) in enumerate(zip(found, first, strict=True)):
        close(value, right, tolerance, f"libtorch, gradient of argument {where[k]}")
    if name not in program.first:
        return
    explicit = program.compiled_adjoint(name, args, weights)
    for k, (value, right) in enumerate(zip(explicit, first, strict=True)):
        close(value, right, tolerance, f"libtorch, d_{name}, adjoint of argument {where[k]}")


def gradients(
    function: Callable[..., Any], args: Sequence[Any], weights: Sequence[Any]
) -> tuple[Tensors, Tensors]:
    """Results, and by autograd the gradients of the float arguments."""
    where = differentiable(args)
    leaves = [args[k].detach().requires_grad_() for k in where]
    full = list(args)
    for k, leaf in zip(where, leaves, strict=True):
        full[k] = leaf
    results = as_tuple(function(*full))
    pairs = [
        (y, w)
        for y, w in zip(results, weights, strict=True)
        if isinstance(y, torch.Tensor) and y.requires_grad
    ]
    found: Sequence[Any] = (None,) * len(leaves)
    if pairs:
        found = torch.autograd.grad(
            [y for y, _ in pairs], leaves, [w for _, w in pairs], allow_unused=True
        )
    return results, _or_zero(found, leaves)
