"""``loma build --device cuda``: which kernels and forms it compiles, and what it says. NVRTC is
another program here, but for the last test."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from corpus import tensor_programs

from loma import pipeline
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.cuda import cubin, nvrtc
from loma.backends.cuda.forms import Form, forms, kernels, options
from loma.errors import CompilationFailed, ToolchainError
from loma.tools import cli, cli_cuda

PROGRAM = """\
def norms(x : In[Tensor[N, D]], at : In[IntTensor[N]]) -> Tensor[N]:
    s : Tensor[N]
    y : Tensor[N]
    s[i] = sum(x[i, d] * x[i, d] for d in D)
    y[at[i]] += s[i] * 2.0
    return y

def columns(x : In[Tensor[N, D]]) -> Tensor[D]:
    y : Tensor[D]
    y[d] = sum(x[i, d] for i in N)
    return y
"""

Run = Callable[..., Result]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "norms.loma"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


@pytest.fixture
def run() -> Run:
    return lambda *arguments: CliRunner().invoke(cli.main, [str(a) for a in arguments])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """NVRTC gives text back; the names of the kernels that it was asked for."""
    names: list[str] = []

    def image(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        names.append(name)
        return b"text in PTX\0"

    known = nvrtc.Library(None, "libnvrtc", (13, 0), (80, 90))  # type: ignore[arg-type]
    monkeypatch.setattr(nvrtc, "find", lambda: known)
    monkeypatch.setattr(nvrtc, "image", image)
    return names


def part(function: str) -> GeneratedSource:
    stage = pipeline.program(PROGRAM, every=True)
    return pipeline.device_part(stage, function, "ns")


# -------------------------------------------------------------------------------- kernels, forms


def test_every_kernel_of_a_program_is_found(pytestconfig: pytest.Config) -> None:
    every = 9 if pytestconfig.getoption("--full") else 27
    for name, text in tensor_programs()[::every]:
        stage = pipeline.program(text, name, every=True)
        if not stage.tensor_functions:
            continue
        for function in pipeline.device_parts(pipeline.generated(stage)):
            source = pipeline.device_part(stage, function, "ns")
            found = kernels(source)
            assert len(found) == source.text.count("LOMA_KERNEL "), (name, function)
            assert all(kernel.text in source.text for kernel in found)


def test_forms_are_of_each_kind() -> None:
    (sums,) = kernels(part("columns"))
    assert (sums.how, sums.across, sums.splits, sums.line) == ("statement", True, True, 10)
    found = forms(sums)
    assert Form(256) in found
    assert Form(1024, 32, across=True) in found
    assert {form.stage for form in found} == {0, 1, 2}
    assert [form.known for form in found].count(True) == 1
    assert len({form.name for form in found}) == len(found)


def test_options_are_those_of_a_launch() -> None:
    (sums,) = kernels(part("columns"))
    told = options(sums, Form(256, 8, across=True, known=True), "double")
    assert told[:6] == [
        "-DLOMA_REAL=double", "-DLOMA_THREADS=256", "-DLOMA_TEAM=8", "-DLOMA_ACROSS=1",
        "-DLOMA_STAGE=0", "-DLOMA_SHARED=1",
    ]  # fmt: skip
    assert told[6:8] == ["-DLOMA_ALIGNED", "-DLOMA_KNOWN"]
    assert len(told) == 8 + sums.numbers


# ---------------------------------------------------------------------------------- what is needed


def elf(sections: dict[str, tuple[bytes, int]]) -> bytes:
    """A file with sections of those contents and sizes."""
    names, body, heads = b"\0", b"", [(0, 0, 0, 0, 0, 0)]
    for name, (content, size) in sections.items():
        heads.append((len(names), 0, 0, 0, 64 + len(body), size))
        names += name.encode() + b"\0"
        body += content
    heads.append((0, 0, 0, 0, 64 + len(body), len(names)))
    body += names
    head = bytearray(64)
    head[:4] = b"\x7fELF"
    struct.pack_into("<Q", head, 0x28, 64 + len(body))
    struct.pack_into("<HHH", head, 0x3A, 64, len(heads), len(heads) - 1)
    table = b"".join(struct.pack("<IIQQQQ", *one) + bytes(24) for one in heads)
    return bytes(head) + body + table


def test_what_a_cubin_says() -> None:
    attributes = struct.pack("<BBHII", 4, 0x2F, 8, 3, 40) + struct.pack("<BBH", 3, 0x19, 72)
    attributes += struct.pack("<BBHII", 4, 0x11, 8, 3, 16)
    image = elf({".nv.info": (attributes, len(attributes)), ".nv.shared.f": (b"", 1312)})
    assert cubin.needs(image, "f", 80) == cubin.Needs(40, 1312, 16)
    assert cubin.needs(image, "f", 90) == cubin.Needs(40, 288, 16)
    assert cubin.needs(image, "g", 90) == cubin.Needs(40, 0, 16)
    assert cubin.needs(b".version 8.4", "f", 90) is None


# ------------------------------------------------------------------------------------ the command


def test_build_lists_kernels(run: Run, program: Path, made: list[str]) -> None:
    result = run("build", "--device", "cuda", "--arch", "sm_90", program)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    first, *lines, last = result.stdout.splitlines()
    assert first == str(program)
    assert "  norms__backward" in lines
    assert any(line.startswith("    columns__kernel1, line 10: ") for line in lines)
    assert last.startswith("NVRTC 13.0, sm_90: ")
    assert "columns__kernel1" in made


def test_build_json_and_files(run: Run, program: Path, made: list[str], tmp_path: Path) -> None:
    where = tmp_path / "out"
    result = run(
        "build", "--json", "--device", "cuda", "--arch", "sm_80", "--arch", "sm_90", "-o", where,
        program,
    )  # fmt: skip
    record = json.loads(result.stdout)
    assert record["ok"] is True
    assert record["architectures"] == ["sm_80", "sm_90"]
    (module,) = record["modules"]
    (kernel,) = [one for one in module["kernels"] if one["name"] == "columns__kernel1"]
    assert kernel["line"] == 10
    assert kernel["registers"] is None  # it is no cubin
    assert record["forms"] == len(made)
    assert (where / "norms" / "columns__kernel1.cu").read_text().startswith("// line 10: ")
    assert len(list(where.rglob("*.ptx"))) == len(made)


def test_a_kernel_that_nvrtc_refuses_is_named(
    run: Run, program: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        raise CompilationFailed(f"compiling the CUDA kernel '{name}' failed: no")

    monkeypatch.setattr(nvrtc, "image", refused)
    result = run("build", "--device", "cuda", "--arch", "sm_90", program)
    assert result.exit_code == 1
    assert f"error: {program}: function '" in result.stderr
    assert ", line " in result.stderr
    assert "for sm_90, compiling the CUDA kernel" in result.stderr


def test_without_nvrtc_one_message(
    run: Run, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(()))
    result = run("build", "--device", "cuda", "--arch", "sm_90", program)
    assert result.exit_code == 1
    assert result.stderr.count("error: ") == 1
    assert "pip install nvidia-cuda-nvrtc" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "--device cuda needs --arch"),
        (["--arch", "sm_90"], "--arch is for --device cuda"),
        (["-o", "somewhere"], "--output is for --device cuda"),
        (["--device", "cuda", "--arch", "hopper"], "'hopper' is no architecture of GPUs"),
        (["--device", "rocm"], "'rocm' is not one of 'cpu', 'cuda'"),
    ],
)
def test_a_wrong_command_line(run: Run, program: Path, arguments: list[str], message: str) -> None:
    result = run("build", *arguments, program)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_scalar_programs_have_no_kernels(run: Run, made: list[str], tmp_path: Path) -> None:
    file = tmp_path / "half.loma"
    file.write_text("def half(x : In[float]) -> float:\n    return x / 2.0\n", encoding="utf-8")
    result = run("build", "--device", "cuda", "--arch", "sm_90", file)
    assert result.exit_code == 0
    assert "  no kernels" in result.stdout
    assert made == []


def test_nvrtc_itself(run: Run, program: Path) -> None:
    try:
        nvrtc.find()
    except ToolchainError:
        pytest.skip("NVRTC is not installed")
    result = run("build", "--json", "--device", "cuda", "--arch", "sm_90", program)
    assert result.exit_code == 0, result.output
    for kernel in json.loads(result.stdout)["modules"][0]["kernels"]:
        assert 8 <= kernel["registers"] <= 255
    assert cli_cuda.tasks(pipeline.parsed(PROGRAM), ["sm_90"])
