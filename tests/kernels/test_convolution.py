"""The forms in which convolutions and their adjoints are computed, and the choice among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fresh
import pytest
from sampled import one_in
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.nn import functional

import loma
from conftest import ROOT
from loma import cache, pipeline
from loma.functions import LomaModule
from loma.tools import cli, tuning

pytestmark = pytest.mark.cpu  # on GPUs a library chooses

PROGRAM = """
def conv(x : In[Tensor[B, C, H, W]], w : In[Tensor[F, D, P, Q]], b : In[Tensor[F]], s : In[int],
         t : In[int], p : In[int], q : In[int], d : In[int], e : In[int], groups : In[int]
         ) -> Tensor[B, F, (H + 2 * p - d * (P - 1) - 1) // s + 1,
                     (W + 2 * q - e * (Q - 1) - 1) // t + 1]:
    return conv2d(x, w, b, stride=[s, t], padding=[p, q], dilation=[d, e], groups=groups)

d_conv = rev_diff(conv)
"""

FORMS = ("library", "channels_last", "gemm", "direct", "fft")
COMPILED = os.environ["LOMA_CACHE_DIR"]  # where conftest.py has compiled modules kept
OPERATORS = ("conv2d", "conv2d_input", "conv2d_weight")

# images, weights, stride, padding, dilation, groups
CASES = {
    "plain": ((2, 9, 11, 13), (17, 9, 5, 3), (1, 1), (0, 0), (1, 1), 1),
    "stride": ((3, 16, 20, 20), (12, 16, 9, 9), (2, 2), (0, 0), (1, 1), 1),
    "stride does not divide": ((2, 8, 12, 15), (9, 8, 3, 4), (3, 2), (1, 2), (1, 1), 1),
    "stride above the kernel": ((2, 8, 13, 11), (8, 8, 2, 1), (4, 3), (0, 1), (1, 1), 1),
    "padding above the kernel": ((2, 8, 5, 6), (8, 8, 2, 3), (1, 2), (3, 4), (1, 1), 1),
    "dilation": ((2, 10, 17, 14), (8, 10, 4, 3), (1, 1), (2, 0), (2, 3), 1),
    "stride and dilation": ((2, 8, 19, 23), (11, 8, 3, 4), (2, 3), (1, 2), (3, 2), 1),
    "one by one": ((3, 20, 7, 5), (10, 20, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "one by one, stride": ((3, 20, 7, 5), (10, 20, 1, 1), (2, 3), (1, 0), (1, 1), 1),
    "one channel": ((5, 1, 12, 12), (32, 1, 5, 5), (1, 1), (0, 0), (1, 1), 1),
    "kernel as large as the image": ((3, 8, 6, 7), (8, 8, 6, 7), (1, 1), (0, 0), (1, 1), 1),
    "several tiles": ((2, 8, 45, 70), (8, 8, 5, 3), (1, 1), (2, 1), (1, 1), 1),
    "groups": ((2, 12, 9, 10), (16, 6, 3, 3), (2, 1), (1, 1), (1, 1), 2),
    "each channel its own group": ((2, 6, 9, 10), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    "one image": ((1, 24, 16, 16), (16, 24, 7, 7), (1, 1), (3, 3), (1, 1), 1),
}
Case = tuple[
    tuple[int, ...], tuple[int, ...], tuple[int, int], tuple[int, int], tuple[int, int], int
]


@pytest.fixture(scope="module")
def module() -> LomaModule:
    return loma.compile(PROGRAM)


@pytest.fixture
def forget(
    module: LomaModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """An empty cache of its own for choices, and a function that empties memory, not the disk."""
    monkeypatch.setenv("LOMA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LOMA_CONVOLUTION", raising=False)

    def empty() -> None:
        for native in tuning.modules():
            native.forget_tuning()

    empty()
    return empty


def applicable(operator: str, case: Case) -> list[str]:
    native = tuning.modules()[0]
    return list(native.convolution_forms(operator, *case))


def operands(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    images, weights = case[:2]
    x = torch.randn(images, dtype=dtype)
    w = torch.randn(weights, dtype=dtype)
    return x, w, torch.randn(weights[0], dtype=dtype)


def attributes(case: Case) -> tuple[int, ...]:
    _, _, stride, padding, dilation, groups = case
    return (*stride, *padding, *dilation, groups)


Values = tuple[Tensor, ...]


def with_loma(
    module: LomaModule, case: Case, x: Tensor, w: Tensor, b: Tensor, g: Tensor | None = None
) -> Values:
    """The result and its gradients; ``g`` is the result's adjoint."""
    x, w, b = (v.detach().requires_grad_() for v in (x, w, b))
    y = module.conv(x, w, b, *attributes(case))
    return (y.detach(), *torch.autograd.grad(y, (x, w, b), torch.ones_like(y) if g is None else g))


def with_torch(case: Case, x: Tensor, w: Tensor, b: Tensor, g: Tensor | None = None) -> Values:
    x, w, b = (v.detach().requires_grad_() for v in (x, w, b))
    _, _, stride, padding, dilation, groups = case
    y = functional.conv2d(x, w, b, stride, padding, dilation, groups)
    return (y.detach(), *torch.autograd.grad(y, (x, w, b), torch.ones_like(y) if g is None else g))


def error(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


# ----------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_every_form_computes_the_same(
    module: LomaModule, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    case = CASES[name]
    if not any(form in applicable(operator, case) for operator in OPERATORS):
        pytest.skip("the form does not apply")
    monkeypatch.setenv("LOMA_CONVOLUTION", form)
    x, w, b = operands(case, torch.float64)
    g = torch.randn_like(with_torch(case, x, w, b)[0])
    exact = with_torch(case, x, w, b, g)
    for value, wanted in zip(with_loma(module, case, x, w, b, g), exact, strict=True):
        assert value.is_contiguous()
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    single = [v.float() for v in (x, w, b, g)]
    library = with_torch(case, *single)
    exact = with_torch(case, *(v.double() for v in single))
    for value, other, wanted in zip(with_loma(module, case, *single), library, exact, strict=True):
        assert value.dtype == torch.float32
        assert error(value, wanted) <= 2 * error(other, wanted) + 3e-7


def test_every_form_applies_somewhere(module: LomaModule) -> None:
    for operator in OPERATORS:
        used = {form for case in CASES.values() for form in applicable(operator, case)}
        none = {"direct"} if operator == "conv2d_weight" else set()
        assert used == set(FORMS) - none


@pytest.mark.parametrize("form", FORMS)
def test_operands_of_any_layout(
    module: LomaModule, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", form)
    case = CASES["stride"]
    x, w, b = operands(case, torch.float64)
    g = torch.randn_like(with_torch(case, x, w, b)[0])
    exact = with_torch(case, x, w, b, g)
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda v: v.contiguous(memory_format=torch.channels_last),
        lambda v: v.transpose(0, 3).contiguous().transpose(0, 3),
        lambda v: torch.stack([v, v], dim=-1)[..., 1],
    ]
    for layout in layouts:
        values = with_loma(module, case, layout(x), layout(w), b, layout(g))
        for value, wanted in zip(values, exact, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    expanded = x[:1, :1].expand_as(x)
    torch.testing.assert_close(
        with_loma(module, case, expanded, w, b)[0], with_torch(case, expanded, w, b)[0]
    )


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch(module: LomaModule, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", form)
    case: Case = ((0, 9, 11, 13), *CASES["plain"][1:])
    x, w, b = operands(case, torch.float32)
    values = with_loma(module, case, x, w, b)
    for value, wanted in zip(values, with_torch(case, x, w, b), strict=True):
        assert torch.equal(value, wanted)


def test_images_without_channels_are_their_bias(module: LomaModule) -> None:
    case: Case = ((2, 0, 11, 13), (17, 0, 5, 3), *CASES["plain"][2:])
    x, w, b = operands(case, torch.float32)
    value, dx, dw, db = with_loma(module, case, x, w, b)  # torch's result has no filters, either
    assert torch.equal(value, b[:, None, None].expand(2, 17, 7, 11))
    assert (dx.shape, dw.shape, db.shape) == (x.shape, w.shape, b.shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_what_is_not_finite_stays_where_it_belongs(
    module: LomaModule, monkeypatch: pytest.MonkeyPatch, form: str, bad: float
) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", form)
    case = CASES["several tiles"]
    x, w, b = operands(case, torch.float32)
    x[1, 3, 20, 30] = bad
    g = torch.randn_like(with_torch(case, x, w, b)[0])
    values = with_loma(module, case, x, w, b, g)
    for value, wanted in zip(values, with_torch(case, x, w, b, g), strict=True):
        assert torch.equal(value.isfinite(), wanted.isfinite())


@pytest.mark.parametrize("form", ["gemm", "direct", "fft"])
@pytest.mark.parametrize("name", ["stride", "several tiles", "one channel"])
def test_results_do_not_depend_on_threads(
    module: LomaModule, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", form)
    case = CASES[name]
    if form not in applicable("conv2d", case):
        pytest.skip("the form does not apply")
    x, w, b = operands(case, torch.float32)
    before = torch.get_num_threads()
    try:
        values = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = with_loma(module, case, x, w, b)
            made = dict(zip(("conv2d", "conv2d_input", "conv2d_weight"), found, strict=False))
            # The library computes what the form does not apply to.
            values.append([v for op, v in made.items() if form in applicable(op, case)])
    finally:
        torch.set_num_threads(before)
    assert len(values[0]) >= 2
    for other in values[1:]:
        assert all(torch.equal(u, v) for u, v in zip(values[0], other, strict=True))


@pytest.mark.full
def test_second_derivatives_and_inference_mode(
    module: LomaModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", "fft")
    case = CASES["plain"]
    x, w, b = operands(case, torch.float64)
    with torch.inference_mode():
        y = module.conv(x, w, b, *attributes(case))
    torch.testing.assert_close(y, with_torch(case, x, w, b)[0])
    results = []
    for f in (
        lambda x, w: module.conv(x, w, b, *attributes(case)),
        lambda x, w: functional.conv2d(x, w, b, *case[2:]),
    ):
        u, v = x.clone().requires_grad_(), w.clone().requires_grad_()
        du, dv = torch.autograd.grad((f(u, v) ** 3).sum(), (u, v), create_graph=True)
        results.append(torch.autograd.grad((du**2).sum() + (dv**2).sum(), (u, v)))
    for value, wanted in zip(*results, strict=True):
        torch.testing.assert_close(value, wanted)


def test_wrong_sizes_are_the_librarys_errors(
    module: LomaModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("", "fft"):
        monkeypatch.setenv("LOMA_CONVOLUTION", form)
        with pytest.raises(RuntimeError, match="expected input"):
            module.conv(torch.ones(2, 3, 5, 5), torch.ones(4, 2, 3, 3), torch.ones(4),
                        1, 1, 0, 0, 1, 1, 1)  # fmt: skip


def test_a_form_that_does_not_exist(module: LomaModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", "winograd")
    case = CASES["plain"]
    with pytest.raises(ValueError, match="no form 'winograd'"):
        module.conv(*operands(case, torch.float32), *attributes(case))


# ---------------------------------------------------------------------------------------- choice

LARGE: Case = ((4, 32, 24, 24), (32, 32, 9, 9), (1, 1), (0, 0), (1, 1), 1)


def call(module: LomaModule, case: Case = LARGE) -> Tensor:
    torch.manual_seed(1)
    return module.conv(*operands(case, torch.float32), *attributes(case))  # type: ignore[no-any-return]


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "tuning").glob("*"))


def test_a_choice_is_made_once_and_kept(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path
) -> None:
    first = call(module)
    (choice,) = tuning.choices()
    assert choice.operator == "conv2d"
    assert choice.shapes["images"] == LARGE[0]
    assert choice.shapes["weights"] == LARGE[1]
    assert choice.form in choice.seconds
    assert set(choice.seconds) == set(applicable("conv2d", LARGE))
    assert choice.threads == torch.get_num_threads()
    (path,) = files(tmp_path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    for _ in range(2):
        forget()  # as another process
        assert torch.equal(call(module), first)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("form", ["library", "channels_last", "gemm", "direct", "fft"])
def test_what_the_file_says_is_used(
    module: LomaModule,
    forget: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    call(module)
    (path,) = files(tmp_path)
    text = path.read_text()
    (choice,) = tuning.choices()
    path.write_text(text.replace(f"choice {choice.form}", f"choice {form}"))
    forget()
    value = call(module)
    assert [c.form for c in tuning.choices()] == [form]
    monkeypatch.setenv("LOMA_CONVOLUTION", form)
    assert torch.equal(value, call(module))


@pytest.mark.parametrize("size", one_in(5, [0, 1, 40, -1, -6], 2))
def test_a_file_that_is_not_whole_is_measured_again(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path, size: int
) -> None:
    call(module)
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    forget()
    assert tuning.choices() == []
    call(module)
    (choice,) = tuning.choices()
    assert choice.path == path
    assert files(tmp_path) == [path]


@pytest.mark.parametrize(
    "change",
    one_in(2, [("choice ", "choice no_such_form_"), ("images 4", "images 5"),
               ("loma tuning", "tuning"), ("torch ", "torch 1")]),
)  # fmt: skip
def test_a_file_of_something_else_is_measured_again(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path, change: tuple[str, str]
) -> None:
    call(module)
    (path,) = files(tmp_path)
    changed = path.read_text().replace(*change)
    path.write_text(changed)
    forget()
    call(module)
    assert path.read_text() != changed
    forget()
    assert [choice.path for choice in tuning.choices()] == [path]


def test_a_folder_that_cannot_be_written(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    first = call(module)
    assert torch.equal(call(module), first)
    (choice,) = tuning.choices()
    assert choice.path is None


@pytest.mark.parametrize("place", ["cache", "cache/tuning"])
def test_a_folder_that_others_may_write_to_is_not_used(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path, place: str
) -> None:
    call(module)
    (path,) = files(tmp_path)
    path.write_text(path.read_text().replace("choice ", "choice no_such_form_"))
    known = path.read_text()
    (tmp_path / place).chmod(0o777)
    forget()
    call(module)
    (choice,) = tuning.choices()
    assert choice.path is None
    assert path.read_text() == known
    (tmp_path / place).chmod(0o755)
    forget()
    call(module)
    assert path.read_text() != known
    assert {choice.path for choice in tuning.choices()} == {path}


def test_a_folder_in_place_of_a_file(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path
) -> None:
    call(module)
    (path,) = files(tmp_path)
    path.unlink()
    (path / "something").mkdir(parents=True)
    assert tuning.clear() == 0
    call(module)
    assert path.is_file()
    assert [choice.path for choice in tuning.choices()] == [path]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_follow_the_umask(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        call(module)
    finally:
        os.umask(before)
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o644 & ~mask
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o755 & ~mask


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user who may become another one")
def test_what_root_chose_another_user_reads(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path
) -> None:
    """What is not known yet goes to a folder of that user's."""
    code = f"""
import os, sys, torch, loma
from loma.tools import tuning
torch.set_num_threads(1)
module = loma.compile(sys.argv[1])
os.environ.update(LOMA_CACHE_DIR=sys.argv[2], TMPDIR=sys.argv[3], HOME="/nonexistent")
os.environ.pop("XDG_CACHE_HOME", None)
def call(*case):
    images, weights, stride, padding, dilation, groups = case
    x, w, b = torch.randn(images), torch.randn(weights), torch.randn(weights[0])
    module.conv(x, w, b, *stride, *padding, *dilation, groups)
os.umask(0o022)
call(*{LARGE!r})
(known,) = tuning.choices()
for native in tuning.modules():
    native.forget_tuning()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
call(*{LARGE!r})
assert tuning.choices() == [known]
call((5, *{LARGE!r}[0][1:]), *{LARGE!r}[1:])
(other,) = [choice for choice in tuning.choices() if choice != known]
assert str(other.path).startswith(f"{{sys.argv[3]}}/loma-65534/tuning/"), other
assert tuning.clear() == 1
assert tuning.choices() == [known]
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o1777)
        cache_dir, private = f"{place}/cache", f"{place}/private"
        Path(private).mkdir()
        Path(private).chmod(0o1777)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOMA_CACHE_DIR": COMPILED}
        done = fresh.run(["-c", code, PROGRAM, cache_dir, private], env=environment)
        assert done.returncode == 0, done.stderr[-3000:]


def test_a_form_that_is_none_is_named(
    module: LomaModule, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOMA_CONVOLUTION", "fastest")
    with pytest.raises(
        ValueError, match=r"LOMA_CONVOLUTION: there is no form 'fastest'.*library, ch"
    ):
        call(module)


def test_small_problems_are_not_measured(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path
) -> None:
    call(module, CASES["groups"])
    assert tuning.choices() == []
    assert not files(tmp_path)


def test_nothing_is_measured_under_deterministic_algorithms(
    module: LomaModule, forget: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        first = call(module)
        assert tuning.choices() == []
        monkeypatch.setenv("LOMA_CONVOLUTION", "fft")
        other = call(module)
        monkeypatch.delenv("LOMA_CONVOLUTION")
        torch.use_deterministic_algorithms(False)
        call(module)
        (path,) = files(tmp_path)
        (choice,) = tuning.choices()
        path.write_text(path.read_text().replace(f"choice {choice.form}", "choice fft"))
        forget()
        assert torch.equal(call(module), other)
        torch.use_deterministic_algorithms(True)
        assert torch.equal(call(module), first)  # whatever was measured before
    finally:
        torch.use_deterministic_algorithms(False)


def test_meta_tensors_are_not_measured(module: LomaModule, forget: Callable[[], None]) -> None:
    x, w, b = (v.to("meta") for v in operands(LARGE, torch.float32))
    assert module.conv(x, w, b, *attributes(LARGE)).shape == (4, 32, 16, 16)
    assert tuning.choices() == []


def test_threads_agree(module: LomaModule, forget: Callable[[], None], tmp_path: Path) -> None:
    results: list[Tensor] = []
    x, w, b = operands(LARGE, torch.float32)
    threads = [
        threading.Thread(target=lambda: results.append(module.conv(x, w, b, *attributes(LARGE))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(results[0], other) for other in results)
    assert len(files(tmp_path)) == 1


CHILD = """
import hashlib, sys
import os, torch, loma
case = eval(sys.argv[2])
module = loma.compile(sys.argv[1])
os.environ["LOMA_CACHE_DIR"] = sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
torch.manual_seed(1)
images, weights, stride, padding, dilation, groups = case
x, w, b = torch.randn(images), torch.randn(weights), torch.randn(weights[0])
y = module.conv(x, w, b, *stride, *padding, *dilation, groups)
print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
"""


@pytest.mark.full
def test_processes_agree(module: LomaModule, forget: Callable[[], None], tmp_path: Path) -> None:
    """Several processes measure the same at once; all use what the first one writes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOMA_CACHE_DIR": COMPILED}
    command = [sys.executable, "-c", CHILD, PROGRAM, repr(LARGE), str(tmp_path / "cache")]
    children = []
    for _ in range(3):
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        children.append(child)
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = {child.communicate(timeout=120)[0] for child in children}
    assert all(child.returncode == 0 for child in children)
    assert len(outputs) == 1
    assert [path.suffix for path in files(tmp_path)] == [".txt"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process(module: LomaModule, forget: Callable[[], None], tmp_path: Path) -> None:
    """A child neither waits for a lock that only its parent's thread would release, nor measures
    what its parent has."""
    code = f"""
import os, sys, threading
import torch, loma
torch.set_num_threads(1)
module = loma.compile(sys.argv[1])
os.environ["LOMA_CACHE_DIR"] = sys.argv[2]
images, weights, stride, padding, dilation, groups = {LARGE!r}
x, w, b = torch.randn(images), torch.randn(weights), torch.randn(weights[0])
call = lambda: module.conv(x, w, b, *stride, *padding, *dilation, groups)
# what torch's library makes once, under locks of its own, is there when the process forks
torch.conv2d(x, w, b, stride, padding, dilation, groups)
thread = threading.Thread(target=call)
thread.start()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        call()
        os._exit(0)
    children.append(child)
thread.join()
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOMA_CACHE_DIR": COMPILED}
    done = fresh.run(["-c", code, PROGRAM, tmp_path / "cache"], env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------- switch, command line


@pytest.mark.parametrize("value", ["0", "-convolution"])
def test_the_switch_leaves_the_librarys_calls(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    def generated() -> str:
        stage = pipeline.program(PROGRAM, "<text>", "module")
        return "\n".join(text for _, text in pipeline.generated(stage).files)

    assert "loma::conv2d_weight(" in generated()
    monkeypatch.setenv("LOMA_OPT", value)
    plain = generated()
    assert "loma::conv2d" not in plain
    assert "at::_ops::convolution::call(" in plain
    assert "at::_ops::convolution_backward::call(" in plain


@pytest.fixture(scope="module")
def plain() -> Iterator[LomaModule]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOMA_OPT", "-convolution")
        module = loma.compile(PROGRAM)
        with_loma(module, LARGE, *operands(LARGE, torch.float32))  # compiled where it stays
        yield module


def test_without_the_optimisation_nothing_is_measured(
    plain: LomaModule, forget: Callable[[], None], tmp_path: Path
) -> None:
    case = LARGE
    x, w, b = operands(case, torch.float32)
    for value, wanted in zip(
        with_loma(plain, case, x, w, b), with_torch(case, x, w, b), strict=True
    ):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-3)
    assert not files(tmp_path)


def test_the_command_line(module: LomaModule, forget: Callable[[], None], tmp_path: Path) -> None:
    run = CliRunner().invoke
    call(module)
    (choice,) = tuning.choices()
    assert run(cli.main, ["tuning"]).output == f"{choice}\n"
    (record,) = json.loads(run(cli.main, ["tuning", "--json"]).output)["choices"]
    assert record["form"] == choice.form
    assert record["seconds"] == choice.seconds
    assert run(cli.main, ["tuning", "--clear"]).output == "removed 1 choices\n"
    assert tuning.choices() == []
    call(module)
    cache.clear()
    assert not files(tmp_path)
