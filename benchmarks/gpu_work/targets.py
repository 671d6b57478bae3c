"""What kernels for GPUs are best written in: CUDA C++ or Triton.

The backward part of a layer norm and attention, each by hand in both languages as loop trees would
be printed: a block for rows or for a tile of queries, reductions by shuffles, sums over rows in two
stages. Against eager PyTorch; needs a CUDA device, NVRTC and Triton. Printed are medians of
interleaved replays of graphs, seconds to compile, the error against float64, whether ten runs gave
the same bits, and the lines of each kernel.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.cpp_extension import CUDA_HOME

ROWS = COLUMNS = 4096
HEADS, LENGTH, WIDTH = 16, 4096, 64
BLOCKS = 264  # of the rows' kernel: two for each multiprocessor of an H100

NORM = r"""
__device__ float2 total(float2 value) {
  __shared__ float2 parts[16];
  for (int k = 16; k > 0; k /= 2) {
    value.x += __shfl_xor_sync(~0u, value.x, k);
    value.y += __shfl_xor_sync(~0u, value.y, k);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int k = 1; k < 16; ++k) value.x += parts[k].x, value.y += parts[k].y;
  return value;
}

extern "C" __global__ void __launch_bounds__(512) norm_rows(
    const float4* x, const float4* g, const float4* w, const float* mean, const float* scale,
    float4* dx, float4* dw, float4* db, int rows) {
  constexpr int N = COLUMNS / 4 / 512;
  float ws[4 * N], sw[4 * N] = {}, sb[4 * N] = {};
  for (int k = 0; k < N; ++k) *(float4*)(ws + 4 * k) = w[threadIdx.x + k * 512];
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    float xs[4 * N], gs[4 * N];
    for (int k = 0; k < N; ++k) {
      *(float4*)(xs + 4 * k) = x[(long)r * (COLUMNS / 4) + threadIdx.x + k * 512];
      *(float4*)(gs + 4 * k) = g[(long)r * (COLUMNS / 4) + threadIdx.x + k * 512];
    }
    const float m = mean[r], s = scale[r];
    float2 sum = {0, 0};
    for (int k = 0; k < 4 * N; ++k) {
      xs[k] = (xs[k] - m) * s;
      sw[k] += gs[k] * xs[k];
      sb[k] += gs[k];
      gs[k] *= ws[k];
      sum.x += gs[k];
      sum.y += gs[k] * xs[k];
    }
    sum = total(sum);
    for (int k = 0; k < 4 * N; ++k) xs[k] = s * (gs[k] - (sum.x + xs[k] * sum.y) / COLUMNS);
    for (int k = 0; k < N; ++k) {
      dx[(long)r * (COLUMNS / 4) + threadIdx.x + k * 512] = *(float4*)(xs + 4 * k);
    }
  }
  for (int k = 0; k < N; ++k) {
    dw[blockIdx.x * (COLUMNS / 4) + threadIdx.x + k * 512] = *(float4*)(sw + 4 * k);
    db[blockIdx.x * (COLUMNS / 4) + threadIdx.x + k * 512] = *(float4*)(sb + 4 * k);
  }
}

extern "C" __global__ void norm_columns(const float* parts, float* sums, int count) {
  __shared__ float rows[8][32];
  const int column = blockIdx.x * 32 + threadIdx.x % 32, row = threadIdx.x / 32;
  float sum = 0;
  for (int r = row; r < count; r += 8) sum += parts[r * COLUMNS + column];
  rows[row][threadIdx.x % 32] = sum;
  __syncthreads();
  if (row > 0) return;
  for (int k = 1; k < 8; ++k) sum += rows[k][threadIdx.x];
  sums[column] = sum;
}
""".replace("COLUMNS", str(COLUMNS))

ATTENTION = r"""
extern "C" __global__ void __launch_bounds__(256) attention(
    const float* q, const float* k, const float* v, float* y, int length) {
  constexpr int D = 64, T = 64, P = 68;
  extern __shared__ float memory[];
  float *qs = memory, *ks = qs + D * P, *vs = ks + D * P, *ps = vs + T * P;
  const long head = (long)blockIdx.y * length * D;
  const int a = threadIdx.x / 16 * 4, b = threadIdx.x % 16 * 4;
  for (int e = threadIdx.x; e < T * D; e += 256) {
    qs[e % D * P + e / D] = q[head + (long)blockIdx.x * T * D + e] * 0.125f;
  }
  float o[4][4] = {}, top[4], sum[4] = {};
  for (int i = 0; i < 4; ++i) top[i] = __int_as_float(0xff800000);
  for (int first = 0; first < length; first += T) {
    __syncthreads();
    for (int e = threadIdx.x; e < T * D; e += 256) {
      ks[e % D * P + e / D] = k[head + (long)first * D + e];
      vs[e / D * P + e % D] = v[head + (long)first * D + e];
    }
    __syncthreads();
    float s[4][4] = {};
    for (int d = 0; d < D; ++d) {
      const float4 l = *(float4*)(qs + d * P + a), r = *(float4*)(ks + d * P + b);
      const float ls[4] = {l.x, l.y, l.z, l.w}, rs[4] = {r.x, r.y, r.z, r.w};
      for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) s[i][j] += ls[i] * rs[j];
    }
    for (int i = 0; i < 4; ++i) {
      float m = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
      for (int n = 8; n > 0; n /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, n));
      m = fmaxf(m, top[i]);
      const float old = __expf(top[i] - m);
      float z = 0;
      for (int j = 0; j < 4; ++j) z += s[i][j] = __expf(s[i][j] - m);
      for (int n = 8; n > 0; n /= 2) z += __shfl_xor_sync(~0u, z, n);
      sum[i] = sum[i] * old + z;
      top[i] = m;
      for (int j = 0; j < 4; ++j) o[i][j] *= old, ps[(b + j) * P + a + i] = s[i][j];
    }
    __syncthreads();
    for (int t = 0; t < T; ++t) {
      const float4 l = *(float4*)(ps + t * P + a), r = *(float4*)(vs + t * P + b);
      const float ls[4] = {l.x, l.y, l.z, l.w}, rs[4] = {r.x, r.y, r.z, r.w};
      for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) o[i][j] += ls[i] * rs[j];
    }
  }
  for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) {
    y[head + ((long)blockIdx.x * T + a + i) * D + b + j] = o[i][j] / sum[i];
  }
}
"""

# The same with tensor cores, whose accumulators have no rows that a thread may scale: they go
# through shared memory.
TENSOR_CORES = r"""
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda::wmma;
typedef __nv_bfloat16 half16;

extern "C" __global__ void __launch_bounds__(128) attention16(
    const half16* q, const half16* k, const half16* v, half16* y, int length) {
  constexpr int D = 64, T = 64, P = 72, S = 68;
  extern __shared__ float memory[];
  float *ss = memory, *os = ss + T * S;
  half16 *qs = (half16*)(os + T * S), *ks = qs + T * P, *vs = ks + T * P, *ps = vs + T * P;
  const long head = (long)blockIdx.y * length * D;
  const int warp = threadIdx.x / 32 * 16, row = threadIdx.x / 2, half = threadIdx.x % 2 * 32;
  for (int e = threadIdx.x; e < T * D / 8; e += 128) {
    *(int4*)(qs + e / 8 * P + e % 8 * 8) = ((int4*)(q + head + (long)blockIdx.x * T * D))[e];
  }
  for (int e = threadIdx.x; e < T * S; e += 128) os[e] = 0;
  float top = __int_as_float(0xff800000), sum = 0;
  for (int first = 0; first < length; first += T) {
    __syncthreads();
    for (int e = threadIdx.x; e < T * D / 8; e += 128) {
      *(int4*)(ks + e / 8 * P + e % 8 * 8) = ((int4*)(k + head + (long)first * D))[e];
      *(int4*)(vs + e / 8 * P + e % 8 * 8) = ((int4*)(v + head + (long)first * D))[e];
    }
    __syncthreads();
    fragment<matrix_a, 16, 16, 16, half16, row_major> left;
    for (int n = 0; n < T; n += 16) {
      fragment<accumulator, 16, 16, 16, float> out;
      fill_fragment(out, 0.0f);
      for (int d = 0; d < D; d += 16) {
        fragment<matrix_b, 16, 16, 16, half16, col_major> right;
        load_matrix_sync(left, qs + warp * P + d, P);
        load_matrix_sync(right, ks + n * P + d, P);
        mma_sync(out, left, right, out);
      }
      store_matrix_sync(ss + warp * S + n, out, S, mem_row_major);
    }
    __syncwarp();
    float m = top, z = 0;
    for (int j = 0; j < 32; ++j) m = fmaxf(m, ss[row * S + half + j] * 0.125f);
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    for (int j = 0; j < 32; ++j) {
      const float e = __expf(ss[row * S + half + j] * 0.125f - m);
      z += e;
      ps[row * P + half + j] = __float2bfloat16(e);
    }
    z += __shfl_xor_sync(~0u, z, 1);
    const float old = __expf(top - m);
    for (int j = 0; j < 32; ++j) os[row * S + half + j] *= old;
    sum = sum * old + z;
    top = m;
    __syncwarp();
    for (int n = 0; n < D; n += 16) {
      fragment<accumulator, 16, 16, 16, float> out;
      load_matrix_sync(out, os + warp * S + n, S, mem_row_major);
      for (int t = 0; t < T; t += 16) {
        fragment<matrix_b, 16, 16, 16, half16, row_major> right;
        load_matrix_sync(left, ps + warp * P + t, P);
        load_matrix_sync(right, vs + t * P + n, P);
        mma_sync(out, left, right, out);
      }
      store_matrix_sync(os + warp * S + n, out, S, mem_row_major);
    }
    __syncwarp();
  }
  for (int j = 0; j < 32; ++j) {
    const float o = os[row * S + half + j] / sum;
    y[head + ((long)blockIdx.x * T + row) * D + half + j] = __float2bfloat16(o);
  }
}
"""

TRITON = """
import triton
import triton.language as tl


@triton.jit
def norm_rows(x, g, w, mean, scale, dx, dw, db, rows, N: tl.constexpr, BLOCKS: tl.constexpr):
    block, columns = tl.program_id(0), tl.arange(0, N)
    ws = tl.load(w + columns)
    sw = tl.zeros([N], tl.float32)
    sb = tl.zeros([N], tl.float32)
    for r in range(block, rows, BLOCKS):
        m, s = tl.load(mean + r), tl.load(scale + r)
        xs = (tl.load(x + r * N + columns) - m) * s
        gs = tl.load(g + r * N + columns)
        sw += gs * xs
        sb += gs
        gs *= ws
        a, b = tl.sum(gs, 0), tl.sum(gs * xs, 0)
        tl.store(dx + r * N + columns, s * (gs - (a + xs * b) / N))
    tl.store(dw + block * N + columns, sw)
    tl.store(db + block * N + columns, sb)


@triton.jit
def norm_columns(parts, sums, count, N: tl.constexpr):
    columns, rows = tl.program_id(0) * 32 + tl.arange(0, 32), tl.arange(0, 32)
    total = tl.zeros([32, 32], tl.float32)
    for first in range(0, count, 32):
        r = first + rows[:, None]
        total += tl.load(parts + r * N + columns[None, :], mask=r < count, other=0.0)
    tl.store(sums + columns, tl.sum(total, 0))


@triton.jit
def attention(q, k, v, y, length, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
              PRECISION: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * length * D
    rows, columns, width = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    qs = tl.load(q + head + rows[:, None] * D + width[None, :])
    top = tl.full([M], float("-inf"), tl.float32)
    sum = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D], tl.float32)
    for first in range(0, length, N):
        at = head + (first + columns[:, None]) * D + width[None, :]
        ks, vs = tl.load(k + at), tl.load(v + at)
        s = tl.dot(qs, tl.trans(ks), input_precision=PRECISION) * 0.125
        m = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - m[:, None])
        old = tl.exp(top - m)
        sum = sum * old + tl.sum(p, 1)
        out = tl.dot(p.to(vs.dtype), vs, out * old[:, None], input_precision=PRECISION)
        top = m
    out = (out / sum[:, None]).to(y.dtype.element_ty)
    tl.store(y + head + rows[:, None] * D + width[None, :], out)
"""

Call = Callable[[], tuple[torch.Tensor, ...]]


def triton_module() -> Any:
    """Triton reads its kernels from a file."""
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "kernels.py"
    path.write_text(TRITON, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(source: str, name: str, *options: str) -> Any:
    from torch.cuda import _compile_kernel

    return _compile_kernel(source, name, nvcc_options=list(options))


def norms(triton: Any) -> dict[str, Callable[[], Call]]:
    x, g = (torch.randn(ROWS, COLUMNS, device="cuda") for _ in range(2))
    w, b = (torch.randn(COLUMNS, device="cuda") for _ in range(2))
    _, mean, scale = torch.ops.aten.native_layer_norm(x, [COLUMNS], w, b, 1e-5)
    dx = torch.empty_like(x)
    parts = torch.empty(2, BLOCKS, COLUMNS, device="cuda")
    sums = torch.empty(2, COLUMNS, device="cuda")
    exact = torch.ops.aten.native_layer_norm_backward(
        *(t.double() for t in (g, x)), [COLUMNS], mean.double(), scale.double(), w.double(),
        b.double(), [True] * 3,
    )  # fmt: skip
    REFERENCES["norm"] = tuple(exact)

    def eager() -> Call:
        mask = [True] * 3
        return lambda: torch.ops.aten.native_layer_norm_backward(
            g, x, [COLUMNS], mean, scale, w, b, mask
        )

    def cuda() -> Call:
        rows, columns = compiled(NORM, "norm_rows"), compiled(NORM, "norm_columns")
        flat = [x, g, w, mean.flatten(), scale.flatten(), dx, parts[0], parts[1], ROWS]

        def call() -> tuple[torch.Tensor, ...]:
            rows(grid=(BLOCKS, 1, 1), block=(512, 1, 1), args=flat)
            for k in range(2):
                args = [parts[k], sums[k], BLOCKS]
                columns(grid=(COLUMNS // 32, 1, 1), block=(256, 1, 1), args=args)
            return dx, sums[0], sums[1]

        return call

    def by_triton() -> Call:
        def call() -> tuple[torch.Tensor, ...]:
            triton.norm_rows[(BLOCKS,)](
                x, g, w, mean, scale, dx, parts[0], parts[1], ROWS, COLUMNS, BLOCKS, num_warps=16
            )
            for k in range(2):
                triton.norm_columns[(COLUMNS // 32,)](parts[k], sums[k], BLOCKS, COLUMNS)
            return dx, sums[0], sums[1]

        return call

    return {"eager": eager, "CUDA": cuda, "Triton": by_triton}


def attentions(triton: Any, dtype: torch.dtype) -> dict[str, Callable[[], Call]]:
    q, k, v = (torch.randn(HEADS, LENGTH, WIDTH, device="cuda", dtype=dtype) for _ in range(3))
    y = torch.empty_like(q)
    exact = F.scaled_dot_product_attention(q[:2].double(), k[:2].double(), v[:2].double())
    REFERENCES[f"attention {dtype}"] = (exact,)
    is_float = dtype == torch.float32

    def eager() -> Call:
        return lambda: (F.scaled_dot_product_attention(q[None], k[None], v[None])[0],)

    def cuda() -> Call:
        if is_float:
            kernel, shared, threads = compiled(ATTENTION, "attention"), 4 * 64 * 68 * 4, 256
        else:
            kernel = compiled(TENSOR_CORES, "attention16", f"-I{CUDA_HOME}/include")
            shared, threads = 2 * 64 * 68 * 4 + 4 * 64 * 72 * 2, 128
        kernel.set_shared_memory_config(shared)
        grid = (LENGTH // 64, HEADS, 1)

        def call() -> tuple[torch.Tensor, ...]:
            args = [q, k, v, y, LENGTH]
            kernel(grid=grid, block=(threads, 1, 1), args=args, shared_mem=shared)
            return (y,)

        return call

    def by_triton(m: int, n: int, warps: int, stages: int) -> Callable[[], Call]:
        def make() -> Call:
            def call() -> tuple[torch.Tensor, ...]:
                triton.attention[(LENGTH // m, HEADS)](
                    q, k, v, y, LENGTH, m, n, WIDTH, "ieee" if is_float else "tf32",
                    num_warps=warps, num_stages=stages,
                )  # fmt: skip
                return (y,)

            return call

        return make

    settings = [(128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2)]
    if is_float:
        settings = [(64, 32, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2)]
    by = {f"Triton {s}": by_triton(*s) for s in settings}
    return {"eager": eager, "CUDA": cuda, **by}


REFERENCES: dict[str, tuple[torch.Tensor, ...]] = {}


def captured(call: Call) -> Callable[[], None]:
    """Five calls as a graph, without the time that launching from Python takes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            call()
    return graph.replay


def measure(title: str, forms: dict[str, Callable[[], Call]]) -> None:
    calls: dict[str, Callable[[], None]] = {}
    notes: dict[str, str] = {}
    for name, make in forms.items():
        start = time.perf_counter()
        try:
            call = make()
            found = [part.clone() for part in call()]
            torch.cuda.synchronize()
        except Exception as error:
            print(f"{title:24} {name:26} fails: {str(error)[:300]}")
            continue
        seconds = time.perf_counter() - start
        errors = []
        for part, right in zip(found, REFERENCES[title], strict=True):
            part = part[: len(right)].double()
            errors.append(float((part - right).norm() / right.norm()))
        same = all(
            all(map(torch.equal, found, [part.clone() for part in call()])) for _ in range(10)
        )
        calls[name] = captured(call)
        notes[name] = f"{seconds:8.2f} s   error {max(errors):.1e}   same bits: {same}"
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(30):
        for name, replay in calls.items():
            replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) / 5)
    for name, own in times.items():
        print(f"{title:24} {name:26} {statistics.median(own):8.4f} ms {notes[name]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("targets.py needs a CUDA device")
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    triton = triton_module()
    measure("norm", norms(triton))
    for dtype in (torch.float32, torch.bfloat16):
        measure(f"attention {dtype}", attentions(triton, dtype))
    for name, text in (("norm", NORM), ("attention", ATTENTION), ("tensor cores", TENSOR_CORES)):
        print(f"lines of CUDA C++, {name}: {len(text.strip().splitlines())}")
    print(f"lines of Triton, all: {len(TRITON.strip().splitlines())}")


if __name__ == "__main__":
    main()
