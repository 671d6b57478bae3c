"""Split mode: a forward function that hands over what its backward function needs.

Under autograd a function runs as ``f__forward``, which returns the results and the saved values,
and later as ``f__backward``, which takes those and the adjoints of the results and returns the
adjoints of the arguments. Both are ordinary loma functions, so the backward function can be split
in its turn: derivatives of any order exist.
"""

from __future__ import annotations

from loma import config
from loma.ad.activity import carries_derivative, zeros_like
from loma.ad.tensor.joint import Joint
from loma.ad.tensor.needs import guard_by_need
from loma.ad.tensor.normalise import pure_results
from loma.ad.tensor.pairs import Arguments
from loma.core.saving import Source, SplitPair
from loma.ad.tensor.saving import recomputed
from loma.core.distinct import checked_elsewhere
from loma.core.effects import assigned, written
from loma.core.ir import (
    INT, Declare, Function, Index, IndexAssign, IntType, Return, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.saving import Save
from loma.core.sizes import bindings
from loma.core.walk import reads_of_type, root
from loma.passes.canonical.copies import without_copies
from loma.passes.canonical.costly import costly_once
from loma.passes.canonical.loops import without_loops
from loma.passes.canonical.temporaries import without_temporaries
from loma.passes.first_write import first_writes
from loma.passes.liveness import Liveness
from loma.passes.reuse import reread, same_adjoints


def split(
    primal: Function,
    joint: Joint,
    names: tuple[str, str],
    functions: tuple[Function, ...],
    save: Save,
) -> tuple[Function, Function, SplitPair]:
    """Cuts the sweeps of ``primal`` into a forward and a backward function of these names."""
    pure = joint.normal.function
    positions = tuple(k for k, p in enumerate(pure.params) if carries_derivative(p.type))
    adjoints = [joint.adjoints[pure.params[k].name] for k in positions]
    analysis = Liveness(functions)
    starts = tuple(
        Declare(v, zeros_like(Var(pure.params[k].name, v.type)))
        for k, v in zip(positions, adjoints, strict=True)
    )
    made = written(joint.forward)
    own = tuple(
        s for s in joint.declarations if isinstance(s, Declare) and s.target.name not in made
    )
    body = first_writes((*starts, *own, *joint.adjoint))
    body, live = analysis.block(body, frozenset(v.name for v in adjoints))
    if "reuse" in config.optimisations():
        # first what is returned in any case, then what is saved anyway
        held = frozenset(v.name for v in joint.results)
        for _ in range(2):
            body = reread(pure, joint.forward, body, held)
            body, live = analysis.block(body, frozenset(v.name for v in adjoints))
            held |= live
    sizes = set(_size_sources(joint))
    if _depends_on_data(live, joint, sizes):
        save = "inputs"
    rerun = tuple(map(checked_elsewhere, recomputed(joint, live, sizes, save)))
    again, live = Liveness(functions).block(first_writes(rerun), live)
    arguments = Arguments()
    saved, boxes, unboxes = _collect(joint, live, primal, arguments)
    for k, seed in enumerate(joint.seeds):
        if carries_derivative(seed.type):
            arguments.add(seed.name, seed.type, Source("grad", k))
    _add_sizes(joint, arguments, live, adjoints)
    of_positions = dict(zip(positions, adjoints, strict=True))
    needs = arguments.add_needs(pure, of_positions, joint.normal.names)
    backward = Function(
        names[1],
        tuple(arguments.params),
        tuple(v.type for v in adjoints),
        (*unboxes, *again, *body, Return(tuple(adjoints))),
        doc=f"Adjoints of the arguments of {primal.name}.",
        span=primal.span,
        primal=primal.name,
        half="backward",
    )
    backward = _shared(backward, functions)
    guarded = guard_by_need(backward.body[len(unboxes) : -1], needs, functions)
    backward = replace(backward, body=(*unboxes, *guarded, Return(tuple(adjoints))))
    returned = (*joint.results, *saved)
    kept, _ = Liveness(functions).block(
        (*joint.declarations, *joint.forward, *boxes), frozenset(v.name for v in returned)
    )
    forward = Function(
        names[0],
        pure.params,
        (*pure_results(primal), *(v.type for v in saved)),
        (*kept, Return(returned)),
        doc=f"{primal.name}, and what its backward part needs.",
        span=primal.span,
        primal=primal.name,
        half="forward",
    )
    entry = _entry_values(joint)
    outs = {p.name: k for k, p in enumerate(primal.params) if p.mode == "Out"}
    entries = tuple(outs.get(entry.get(v.name, ""), -1) for v in saved)
    pair = SplitPair(primal.name, *names, tuple(arguments.sources), positions, entries)
    return forward, backward, pair


def _shared(backward: Function, functions: tuple[Function, ...]) -> Function:
    """The function without copies, and with what several adjoints are made of in tensors of its
    own: behind guards for what only some of them need, neither would be seen."""
    wanted = config.optimisations()
    if "inline" in wanted:
        returned = backward.body[-1]
        assert isinstance(returned, Return)
        backward = without_copies(backward, frozenset(map(root, returned.values)))
    if "temporaries" in wanted:
        backward = without_temporaries(backward, every=True)
    if "loops" in wanted:  # each adjoint that rounds make may have a need of its own
        backward = without_loops(backward, every=True)
        backward = replace(backward, body=first_writes(backward.body))
    if "costly" in wanted:
        backward = costly_once(backward, {function.name: function for function in functions})
    if "reuse" in wanted:
        backward = same_adjoints(backward)
    return backward


def _depends_on_data(live: frozenset[str], joint: Joint, sizes: set[str]) -> bool:
    """Whether a tensor has a size that no argument tells, as the tape of a loop that runs
    ``range(n[0])``. No result of an operator has such a shape, so it is made again."""
    known = sizes | {p.name for p in joint.normal.function.params}
    types = joint.normal.types
    return any(name in types and not reads_of_type(types[name]) <= known for name in live)


def _collect(
    joint: Joint, live: frozenset[str], primal: Function, arguments: Arguments
) -> tuple[list[Var], tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Adds all that the backward part reads, seeds and sizes aside; the values that are saved.

    Ints that follow from data travel as rank-0 IntTensors: also returned are the statements that
    pack them in the forward and unpack them in the backward part.
    """
    pure = joint.normal.function
    params = {p.name: k for k, p in enumerate(pure.params)}
    seeds = {seed.name for seed in joint.seeds}
    results: dict[str, int] = {}
    for k, var in enumerate(joint.results):
        results.setdefault(var.name, k)
    types = joint.normal.types
    entry = _entry_values(joint)
    saved: list[Var] = []
    boxes: list[Stmt] = []
    unboxes: list[Stmt] = []
    sizes = set(_size_sources(joint))
    for name in sorted(live - seeds - sizes, key=lambda n: (params.get(n, len(params)), n)):
        if name in params:
            arguments.add(name, pure.params[params[name]].type, Source("arg", params[name]))
        elif name in entry and primal.params[params[entry[name]]].mode == "In":
            arguments.add(name, types[name], Source("arg", params[entry[name]]))
        elif isinstance(types[name], IntType):
            box = Var(joint.normal.names.fresh(f"_box_{name.lstrip('_')}"), TensorType((), "int"))
            saved.append(box)
            arguments.add(box.name, box.type, Source("saved", len(saved) - 1))
            cell = Index(box, (), INT)
            boxes += [Declare(box, None), IndexAssign(cell, "=", Var(name, INT), ())]
            unboxes.append(Declare(Var(name, INT), cell))
        elif name in results:
            arguments.add(name, types[name], Source("result", results[name]))
        else:
            saved.append(Var(name, types[name]))
            arguments.add(name, types[name], Source("saved", len(saved) - 1))
    return saved, tuple(boxes), tuple(unboxes)


def _entry_values(joint: Joint) -> dict[str, str]:
    """Variables that hold a parameter's value on entry for good, with that parameter."""
    params = {p.name for p in joint.normal.function.params}
    changed = set(assigned(joint.forward))
    return {
        stmt.target.name: stmt.value.name
        for stmt in joint.forward
        if isinstance(stmt, Declare) and isinstance(stmt.value, Var)
        if stmt.value.name in params and stmt.target.name not in changed
    }


def _size_sources(joint: Joint) -> dict[str, Source]:
    """Where each size variable of the primal can be read."""
    return {
        name: Source("size", at.param, at.dim, at.scale, at.offset)
        for name, at in bindings(joint.normal.function.params).items()
    }


def _add_sizes(
    joint: Joint, arguments: Arguments, live: frozenset[str], adjoints: list[Var]
) -> None:
    """Int arguments for sizes that the backward part uses and no tensor argument shows."""
    params = {p.name: k for k, p in enumerate(joint.normal.function.params)}
    needed = set(live)
    for type_ in [p.type for p in arguments.params] + [v.type for v in adjoints]:
        needed |= reads_of_type(type_)
    shown = set(bindings(arguments.params))
    for name, source in _size_sources(joint).items():
        if name in needed and name not in shown:
            arguments.add(name, INT, source)
    present = {p.name for p in arguments.params}
    for name in sorted((needed & set(params)) - present):
        type_ = joint.normal.function.params[params[name]].type
        arguments.add(name, type_, Source("arg", params[name]))
