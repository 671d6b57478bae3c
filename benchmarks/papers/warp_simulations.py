"""The simulations of simulations.py in NVIDIA Warp: a kernel for a step, launched for each. What a
kernel overwrites is lost to its adjoint, so every step has memory of its own.

Launches and the tape are recorded once, and replayed. On a CPU, Warp runs a kernel on one thread.
"""
# mypy: ignore-errors

import torch
import warp as wp
from papers.libraries import Steps

wp.config.quiet = True
wp.init()


@wp.kernel
def pull(x: wp.array2d(dtype=wp.vec3), f: wp.array2d(dtype=wp.vec3), rest: wp.array(dtype=float),
         ends: wp.array2d(dtype=int), stiffness: float, t: int):  # fmt: skip
    s = wp.tid()
    i = ends[s, 0]
    j = ends[s, 1]
    e = x[t, j] - x[t, i]
    n = wp.length(e)
    force = e * (stiffness * (n - rest[s]) / n)
    wp.atomic_add(f, t, i, force)
    wp.atomic_sub(f, t, j, force)


@wp.kernel
def move(x: wp.array2d(dtype=wp.vec3), v: wp.array2d(dtype=wp.vec3), f: wp.array2d(dtype=wp.vec3),
         decay: float, gravity: float, dt: float, t: int):  # fmt: skip
    p = wp.tid()
    new = v[t, p] * decay + (f[t, p] - wp.vec3(0.0, gravity, 0.0)) * dt
    v[t + 1, p] = new
    x[t + 1, p] = x[t, p] + new * dt


@wp.func
def at(u: wp.array3d(dtype=float), t: int, i: int, j: int):
    if i < 0 or j < 0 or i >= u.shape[1] or j >= u.shape[2]:
        return 0.0
    return u[t, i, j]


@wp.func
def bend(u: wp.array3d(dtype=float), t: int, i: int, j: int):
    return (at(u, t, i - 1, j) + at(u, t, i + 1, j) + at(u, t, i, j - 1) + at(u, t, i, j + 1)
            - 4.0 * u[t, i, j])  # fmt: skip


@wp.kernel
def oscillate(u: wp.array3d(dtype=float), a: float, b: float, t: int):
    i, j = wp.tid()
    u[t + 2, i, j] = (2.0 * u[t + 1, i, j] - u[t, i, j] + a * bend(u, t + 1, i, j)
                      - b * bend(u, t, i, j))  # fmt: skip


@wp.kernel
def fly(x: wp.array3d(dtype=float), v: wp.array3d(dtype=float), g: wp.array(dtype=float),
        bounce: float, dt: float, t: int):  # fmt: skip
    i, d = wp.tid()
    new = v[t, i, d] + dt * g[d]
    if x[t, i, d] + dt * new < 0.0:
        impact = -x[t, i, d] / new
        v[t + 1, i, d] = -bounce * new
        x[t + 1, i, d] = -bounce * new * (dt - impact)
    else:
        v[t + 1, i, d] = new
        x[t + 1, i, d] = x[t, i, d] + dt * new


class Recorded(Steps):
    def array(self, shape, dtype=wp.float32):
        """Memory that both torch and Warp see, and that of its adjoint: as torch's two tensors, and
        as Warp's array."""
        values, grads = torch.zeros(shape), torch.zeros(shape)
        self.grads.append(grads)
        return values, grads, wp.from_torch(values, dtype, True, wp.from_torch(grads, dtype))

    def __init__(self):
        self.grads, self.launches, self.tape = [], [], wp.Tape()

    def launch(self, kernel, dim, inputs):
        self.launches.append(wp.launch(kernel, dim, inputs, record_cmd=True, device="cpu"))
        with self.tape:
            wp.launch(kernel, dim, inputs, device="cpu")

    def forward(self):
        for launch in self.launches:
            launch.launch()

    def clear(self):
        for grads in self.grads:
            grads.zero_()

    def backward(self):
        self.tape.backward()


class Springs(Recorded):
    def __init__(self, x0, v0, rest, ends, *, stiffness, decay, gravity, dt, T):
        super().__init__()
        x, x_grad, wx = self.array((T + 1, *x0.shape), wp.vec3)
        v, v_grad, wv = self.array((T + 1, *x0.shape), wp.vec3)
        self.force, _, wf = self.array((T, *x0.shape), wp.vec3)
        length, length_grad, w_rest = self.array(rest.shape)
        w_ends = wp.from_torch(ends.int().contiguous())
        self.inputs, self.input_grads = (x[0], v[0], length), (x_grad[0], v_grad[0], length_grad)
        self.result, self.result_grad = x[T], x_grad[T]
        for t in range(T):
            self.launch(pull, len(ends), [wx, wf, w_rest, w_ends, stiffness, t])
            self.launch(move, len(x0), [wx, wv, wf, decay, gravity, dt, t])

    def forward(self):
        self.force.zero_()
        super().forward()


class Wave(Recorded):
    def __init__(self, first, *, a, b, T):
        super().__init__()
        u, grad, wu = self.array((T + 2, *first.shape))
        self.inputs, self.input_grads = (u[1],), (grad[1],)
        self.result, self.result_grad = u[T + 1], grad[T + 1]
        for t in range(T):
            self.launch(oscillate, first.shape, [wu, a, b, t])


class Balls(Recorded):
    def __init__(self, x0, v0, g, *, bounce, dt, T):
        super().__init__()
        x, x_grad, wx = self.array((T + 1, *x0.shape))
        v, v_grad, wv = self.array((T + 1, *x0.shape))
        self.inputs, self.input_grads = (x[0], v[0]), (x_grad[0], v_grad[0])
        self.result, self.result_grad = x[T], x_grad[T]
        for t in range(T):
            self.launch(fly, x0.shape, [wx, wv, wp.from_torch(g), bounce, dt, t])
