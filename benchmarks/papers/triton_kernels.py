"""Kernels of rows in Triton, forward, as its tutorials have them: a program for a row, which is
read in one block; cross entropy reads its longer rows in several."""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl

EPS = 1e-5
LARGEST = 4096  # columns of a block of cross entropy


@triton.jit
def softmax_kernel(x, y, d, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, block)
    inside = at < d
    values = tl.load(x + row + at, mask=inside, other=-float("inf"))
    e = tl.exp(values - tl.max(values, 0))
    tl.store(y + row + at, e / tl.sum(e, 0), mask=inside)


@triton.jit
def layer_norm_kernel(x, w, b, y, d, eps, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, block)
    inside = at < d
    values = tl.load(x + row + at, mask=inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, 0) / d, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / d + eps)
    weight = tl.load(w + at, mask=inside)
    bias = tl.load(b + at, mask=inside)
    tl.store(y + row + at, centred * scale * weight + bias, mask=inside)


@triton.jit
def rms_norm_kernel(x, w, y, d, eps, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, block)
    inside = at < d
    values = tl.load(x + row + at, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / d + eps)
    weight = tl.load(w + at, mask=inside)
    tl.store(y + row + at, values * scale * weight, mask=inside)


@triton.jit
def cross_entropy_kernel(x, label, loss, d, block: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for first in range(0, d, block):
        at = first + tl.arange(0, block)
        values = tl.load(x + n * d + at, mask=at < d, other=-float("inf"))
        new = tl.maximum(largest, tl.max(values, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(values - new), 0)
        largest = new
    right = tl.load(x + n * d + tl.load(label + n))
    tl.store(loss + n, largest + tl.log(total) - right)


def _launch(kernel, count, width, *args):
    block = triton.next_power_of_2(width)
    if kernel is cross_entropy_kernel:
        block = min(block, LARGEST)
    kernel[(count,)](*args, block=block, num_warps=min(max(block // 256, 1), 16))


def softmax(x):
    y = torch.empty_like(x)
    _launch(softmax_kernel, *x.shape, x, y, x.shape[1])
    return y


def layer_norm(x, w, b):
    y = torch.empty_like(x)
    _launch(layer_norm_kernel, *x.shape, x, w, b, y, x.shape[1], EPS)
    return y


def rms_norm(x, w):
    y = torch.empty_like(x)
    _launch(rms_norm_kernel, *x.shape, x, w, y, x.shape[1], EPS)
    return y


def cross_entropy(x, label):
    loss = x.new_empty(len(x))
    _launch(cross_entropy_kernel, *x.shape, x, label, loss, x.shape[1])
    return loss.mean()
