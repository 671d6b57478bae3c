"""Calls whose loops are launched on a GPU, with a driver that stands in for CUDA's."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import gpu_stand_in
import pytest
import torch

import loma
from loma import gpu
from loma.backends.cuda import images

pytestmark = pytest.mark.cpu  # the stand-in takes the place of a GPU

PROGRAM = """
def scale(x : In[Tensor[N, D]], a : In[float]) -> Tensor[N, D]:
    return a * x

def total(x : In[Tensor[N, D]]) -> Tensor[N]:
    y : Tensor[N]
    y[n] += x[n, d]
    return y

def add(x : In[Tensor[N]], y : Out[Tensor[N]]):
    y[n] = y[n] + x[n]
"""

SCALE = """
loma::gpu::Kernel kernel("scale_kernel", R"loma(
KERNEL(scale_kernel) {
  float* y = GIVEN(float*, 0);
  const float* x = GIVEN(const float*, 1);
  const Number a = GIVEN(Number, 2);
  const int64_t rows = GIVEN(int64_t, 3), columns = GIVEN(int64_t, 4);
  const Grid& grid = GIVEN(Grid, 5);
  for (int64_t k = 0; k < grid.count; ++k) y[k] = (a.pointer ? *a.pointer : a.value) * x[k];
  if (grid.count != rows * columns) y[0] = -1;
  if (y[0] == 13) {
    grid.report->kind = 3;  // outside
    grid.report->numbers[0] = 1, grid.report->numbers[1] = 5, grid.report->numbers[2] = 7;
    const char* const texts[] = {"scale: line 3: ", "p[i]", "x"};
    for (int k = 0; k < 3; ++k) __builtin_strcpy(grid.report->texts[k], texts[k]);
    grid.report->state = 2;
  }
}
)loma");

template <typename real>
void run(const void* given_, const int64_t*, bool, void* made_) {
  const auto* const tensors = static_cast<const loma::Tensor*>(given_);
  const loma::Tensor x = loma::dense(tensors[0]);
  const int64_t N = x.size(0), D = x.size(1);
  const loma::Tensor y = loma::empty({N, D}, loma::options<real>());
  loma::gpu::Launch launch_(kernel, sizeof(real));
  launch_.pointer(y.template mutable_data_ptr<real>());
  launch_.pointer(x.template const_data_ptr<real>());
  launch_.element<real>(tensors[1]);
  launch_.number(N);
  launch_.number(D);
  launch_.statement(N * D, 1, false, 0);
  static_cast<loma::Tensor*>(made_)[0] = y;
}
"""

TOTAL = """
loma::gpu::Kernel kernel("total_kernel", R"loma(
KERNEL(total_kernel) {
  float* y = GIVEN(float*, 0);
  const float* x = GIVEN(const float*, 1);
  const int64_t rows = GIVEN(int64_t, 2), columns = GIVEN(int64_t, 3);
  const Grid& grid = GIVEN(Grid, 4);
  float* parts = reinterpret_cast<float*>(grid.parts);
  for (int64_t n = 0; n < rows; ++n) {
    float sum = 0;
    if (LOMA_STAGE == 2) {
      for (int64_t s = 0; s < grid.slices; ++s) sum += parts[s * rows + n];
      y[n] = sum;
      continue;
    }
    for (int64_t d = 0; d < columns; ++d) sum += x[n * columns + d];
    if (LOMA_STAGE == 0) y[n] = sum;
    for (int64_t s = 0; LOMA_STAGE == 1 && s < sizes[1]; ++s) parts[s * rows + n] = s ? 0 : sum;
  }
}
)loma");

template <typename real>
void run(const void* given_, const int64_t*, bool, void* made_) {
  const loma::Tensor& x = static_cast<const loma::Tensor*>(given_)[0];
  const int64_t N = x.size(0), D = x.size(1);
  const loma::Tensor y = loma::empty({N}, loma::options<real>());
  loma::gpu::Launch launch_(kernel, sizeof(real));
  launch_.pointer(y.template mutable_data_ptr<real>());
  launch_.pointer(x.template const_data_ptr<real>());
  launch_.number(N);
  launch_.number(D);
  launch_.statement(N, D, false, 1);
  static_cast<loma::Tensor*>(made_)[0] = y;
}
"""

ADD = """
loma::gpu::Kernel kernel("add_kernel", R"loma(
KERNEL(add_kernel) {
  float* y = GIVEN(float*, 0);
  const float* x = GIVEN(const float*, 1);
  const Grid& grid = GIVEN(Grid, 2);
  for (int64_t k = 0; k < grid.count; ++k) y[k] += x[k];
  const bool shared = sizes[3] == grid.bytes && !grid.workspace;
  const bool apart = sizes[3] == 0 && grid.workspace;
  if (!(LOMA_SHARED ? shared : apart)) y[0] = -1;
  if (apart) grid.workspace[sizes[0] * grid.bytes - 1] = 1;
}
)loma");

template <typename real>
void run(const void* given_, const int64_t*, bool in_place, void* made_) {
  const auto* const tensors = static_cast<const loma::Tensor*>(given_);
  const loma::Tensor y = loma::out(tensors[1], in_place);
  loma::gpu::Launch launch_(kernel, sizeof(real));
  launch_.pointer(y.template mutable_data_ptr<real>());
  launch_.pointer(tensors[0].template const_data_ptr<real>());
  launch_.fused(y.size(0), 4096, y.size(0) * 1024);
  static_cast<loma::Tensor*>(made_)[0] = y;
}
"""


@pytest.fixture(scope="module")
def asked() -> Iterator[gpu_stand_in.Images]:
    made = gpu_stand_in.Images()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOMA_CUDA_DRIVER", gpu_stand_in.driver()._name)
        patch.delenv("LOMA_CHECK", raising=False)
        former = images.use(made)
        yield made
        images.use(former)


@pytest.fixture(scope="module")
def module(asked: gpu_stand_in.Images) -> Iterator[loma.LomaModule]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOMA_SPECIALISATIONS", "8")
        found = loma.compile(PROGRAM)
    gpu_stand_in.part(found, "scale", SCALE, "light_prelude.h")
    gpu_stand_in.part(found, "total", TOTAL, "prelude.h")
    gpu_stand_in.part(found, "add", ADD, "light_prelude.h")
    assert found.__native__ is not None
    found.__native__.serve_cpu_by_gpu(True)
    yield found
    found.__native__.serve_cpu_by_gpu(False)


def test_a_call_launches_its_kernel(module: loma.LomaModule, asked: gpu_stand_in.Images) -> None:
    x = torch.randn(30, 40)
    before = gpu_stand_in.count()
    assert torch.equal(module.scale(x, 3.0), 3 * x)
    assert torch.equal(module.scale(x.t(), torch.tensor(2.0)), 2 * x.t())
    assert gpu_stand_in.count() == before + 2
    assert gpu_stand_in.last() == (5, 1, 256, 0)
    name, options, architecture = next(item for item in asked.asked if item[0] == "scale_kernel")
    assert (name, architecture) == ("scale_kernel", "sm_90")
    assert options == [
        "-DLOMA_REAL=float", "-DLOMA_THREADS=256", "-DLOMA_TEAM=1", "-DLOMA_ACROSS=0",
        "-DLOMA_STAGE=0", "-DLOMA_SHARED=1",
    ]  # fmt: skip


def test_nothing_is_launched_for_no_iterations(module: loma.LomaModule) -> None:
    before = gpu_stand_in.count()
    assert module.scale(torch.ones(0, 4), 2.0).shape == (0, 4)
    assert gpu_stand_in.count() == before


def test_long_sums_are_launched_in_two_stages(
    module: loma.LomaModule, asked: gpu_stand_in.Images
) -> None:
    x = torch.randn(2, 1 << 15)
    torch.testing.assert_close(module.total(x), x.sum(1), rtol=1e-4, atol=1e-3)
    assert gpu_stand_in.last(1) == (2, 32, 512, 0)
    assert gpu_stand_in.last(0) == (1, 1, 256, 0)
    stages = [options for name, options, _ in asked.asked if name == "total_kernel"]
    assert [o for options in stages for o in options if "STAGE" in o] == [
        "-DLOMA_STAGE=1", "-DLOMA_STAGE=2",
    ]  # fmt: skip
    assert torch.equal(module.total(torch.ones(3, 5)), torch.full((3,), 5.0))


def test_private_memory_is_shared_memory_where_it_fits(module: loma.LomaModule) -> None:
    y = torch.ones(100)
    module.add(torch.ones(100), y)
    assert torch.equal(y, torch.full((100,), 2.0))
    shared = 100 * 1024
    assert gpu_stand_in.last()[3] == shared
    assert ctypes.c_int64.in_dll(gpu_stand_in.driver(), "allowed_shared").value == shared
    y = torch.ones(1000)
    module.add(torch.ones(1000), y)
    assert torch.equal(y, torch.full((1000,), 2.0))
    assert gpu_stand_in.last()[3] == 0


def test_threads_that_need_more_shared_memory(module: loma.LomaModule) -> None:
    """The smaller launch is still asking for its bytes when the larger one asks for more."""

    def call(n: int) -> None:
        y = torch.ones(n)
        module.add(torch.ones(n), y)
        results.append(torch.equal(y, torch.full((n,), 2.0)))

    results: list[bool] = []
    call(10)  # compiles it
    ctypes.c_uint.in_dll(gpu_stand_in.driver(), "slow").value = 300_000
    smaller = threading.Thread(target=call, args=(150,))
    smaller.start()
    time.sleep(0.05)
    call(200)
    smaller.join()
    call(200)
    assert results == [True] * 4


def test_numbers_that_come_again_are_known(
    module: loma.LomaModule, asked: gpu_stand_in.Images
) -> None:
    x = torch.randn(7, 11)
    expected = ["-DLOMA_KNOWN", "-DLOMA_KNOWN_0=7", "-DLOMA_KNOWN_1=11"]
    for _ in range(2):
        assert torch.equal(module.scale(x, 3.0), 3 * x)
    assert not any(options[-3:] == expected for _, options, _ in asked.asked)
    for _ in range(500):
        assert torch.equal(module.scale(x, 3.0), 3 * x)
        if any(options[-3:] == expected for _, options, _ in asked.asked):
            break
        time.sleep(0.01)
    time.sleep(0.5)
    assert torch.equal(module.scale(x, 3.0), 3 * x)
    assert sum(options[-3:] == expected for _, options, _ in asked.asked) == 1


def test_a_known_kernel_that_cannot_be_loaded_leaves_the_general_one(
    module: loma.LomaModule, asked: gpu_stand_in.Images
) -> None:
    def broken(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        image = asked(name, text, options, architecture)
        return b"/nowhere/kernel.so\0" if "-DLOMA_KNOWN" in options else image

    x = torch.randn(5, 13)
    images.use(broken)
    try:
        for _ in range(3):
            assert torch.equal(module.scale(x, 3.0), 3 * x)
        assert images.wait(60)
        with pytest.warns(UserWarning, match="'scale_kernel' could not be loaded .* general"):
            found = module.scale(x, 3.0)
        assert torch.equal(found, 3 * x)
        assert torch.equal(module.scale(x, 3.0), 3 * x)
    finally:
        images.use(asked)


def test_a_failed_check_is_raised_by_the_next_call(module: loma.LomaModule) -> None:
    message = r"^scale: line 3: subscript 'p\[i\]' of 'x' is 7, outside dimension 1 of size 5$"
    thirteen = torch.full((1, 1), 13.0)
    module.scale(thirteen, 1.0)
    with pytest.raises(ValueError, match=message):
        module.scale(torch.ones(1, 1), 1.0)
    module.scale(torch.ones(1, 1), 1.0)
    loma.check_device()
    module.scale(thirteen, 1.0)
    with pytest.raises(ValueError, match=message):
        loma.check_device()
    loma.check_device()


def test_check_sync_raises_in_the_call_itself(
    module: loma.LomaModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOMA_CHECK", "sync")
    with pytest.raises(ValueError, match="'x' is 7"):
        module.scale(torch.full((1, 1), 13.0), 1.0)
    with pytest.raises(ValueError, match="'x' is 7"):
        module.scale.operator(torch.full((1, 1), 13.0), torch.tensor(1.0))
    assert module.scale(torch.ones(1, 1), 1.0).item() == 1


def test_errors_of_the_driver_name_the_kernel(module: loma.LomaModule) -> None:
    ctypes.c_int.in_dll(gpu_stand_in.driver(), "refused").value = 701
    with pytest.raises(
        RuntimeError, match=r"cuLaunchKernel of scale_kernel failed: too many resources .*701"
    ):
        module.scale(torch.ones(1, 1), 1.0)


def test_an_error_of_the_compiler_is_the_calls(
    module: loma.LomaModule, asked: gpu_stand_in.Images
) -> None:
    def refuse(*_: object) -> bytes:
        raise loma.errors.ToolchainError("no compiler today")

    images.use(refuse)
    try:
        with pytest.raises(loma.errors.ToolchainError, match="no compiler today"):
            module.scale(torch.ones(2, 2, dtype=torch.float64), 1.0)
    finally:
        images.use(asked)


def test_the_cpus_kernels_stay(module: loma.LomaModule) -> None:
    assert module.__native__ is not None
    before = gpu_stand_in.count()
    module.__native__.serve_cpu_by_gpu(False)
    try:
        assert torch.equal(module.scale(torch.ones(2, 2), 3.0), torch.full((2, 2), 3.0))
    finally:
        module.__native__.serve_cpu_by_gpu(True)
    assert gpu_stand_in.count() == before


def test_without_a_driver_the_message_says_so(
    asked: gpu_stand_in.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of its own, since each keeps the driver that it found."""
    module = loma.compile(PROGRAM.split("def total")[0])
    native = module.__native__
    assert native is not None
    gpu_stand_in.part(module, "scale", SCALE, "light_prelude.h")
    native.serve_cpu_by_gpu(True)
    monkeypatch.setenv("LOMA_CUDA_DRIVER", "/nowhere/libcuda.so")
    with pytest.raises(RuntimeError, match=r"no CUDA driver \(/nowhere/libcuda\.so\).*install"):
        module.scale(torch.ones(2, 2), 2.0)
    monkeypatch.setenv("LOMA_CUDA_DRIVER", gpu_stand_in.driver()._name)
    assert torch.equal(module.scale(torch.ones(2, 2), 2.0), torch.full((2, 2), 2.0))


def test_what_is_compiled_is_asked_for_at_the_first_call(
    asked: gpu_stand_in.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = loma.compile(PROGRAM.split("def total")[0].replace("scale", "scale_later"))
    native = module.__native__
    assert native is not None
    found = []

    def build(*given: object) -> Path:
        found.append(given[-2:])
        return gpu_stand_in.built(module, "scale_later", SCALE, "light_prelude.h")

    monkeypatch.setattr(gpu, "build", build)
    native.serve_cpu_by_gpu(True)
    for _ in range(2):
        assert torch.equal(module.scale_later(torch.ones(2, 2), 2.0), torch.full((2, 2), 2.0))
    assert found == [("scale_later", "float")]


def test_other_devices_are_refused(module: loma.LomaModule) -> None:
    x = torch.ones(2, 2)
    assert module.scale(x.to("meta"), 2.0).is_meta
    with pytest.raises(ValueError, match="argument 'y' is on cpu, but argument 'x'"):
        module.add(torch.ones(2, device="meta"), torch.ones(2))
    assert module.scale(x, torch.tensor(2.0)).device.type == "cpu"
    with pytest.raises(ValueError, match="'a' is on meta, but the call is on cpu"):
        module.scale(x, torch.tensor(2.0, device="meta"))
