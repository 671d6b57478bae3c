"""The simulations of simulations.py in Taichi, as in DiffTaichi (Hu et al. 2020): fields that have
an entry for every step, a kernel for a step, and its adjoint called for the steps in reverse."""
# mypy: ignore-errors

import taichi as ti
import torch
from papers.libraries import Steps

ti.init(arch=ti.cpu, cpu_max_num_threads=torch.get_num_threads(), log_level=ti.ERROR)


class Fields(Steps):
    """``inputs`` and so on are copied from and to fields, in which the steps are."""

    def setup(self, T, fields, inputs, result):
        self.T, self.fields, self.places, self.last = T, fields, inputs, result
        shapes = [field.shape if t is None else field.shape[1:] for field, t in inputs]
        self.inputs = [torch.zeros(shape) for shape in shapes]
        self.input_grads = [torch.zeros(shape) for shape in shapes]
        field, _ = result
        self.result, self.result_grad = (torch.zeros(field.shape[1:]) for _ in range(2))

    def forward(self):
        for (field, t), values in zip(self.places, self.inputs, strict=True):
            put_all(field, values) if t is None else put(field, t, values)
        for t in range(self.T):
            self.step(t)
        take(self.last[0], self.last[1], self.result)

    def backward(self):
        for field in self.fields:
            field.grad.fill(0.0)
        put(self.last[0].grad, self.last[1], self.result_grad)
        for t in reversed(range(self.T)):
            self.step_back(t)
        for (field, t), grads in zip(self.places, self.input_grads, strict=True):
            take_all(field.grad, grads) if t is None else take(field.grad, t, grads)


@ti.kernel
def put(field: ti.template(), t: int, values: ti.types.ndarray()):
    for i, j in ti.ndrange(values.shape[0], values.shape[1]):
        field[t, i, j] = values[i, j]


@ti.kernel
def take(field: ti.template(), t: int, values: ti.types.ndarray()):
    for i, j in ti.ndrange(values.shape[0], values.shape[1]):
        values[i, j] = field[t, i, j]


@ti.kernel
def put_all(field: ti.template(), values: ti.types.ndarray()):
    for i in field:
        field[i] = values[i]


@ti.kernel
def take_all(field: ti.template(), values: ti.types.ndarray()):
    for i in field:
        values[i] = field[i]


def field(*shape):
    return ti.field(float, shape, needs_grad=True)


@ti.data_oriented
class Springs(Fields):
    def __init__(self, x0, v0, rest, ends, *, stiffness, decay, gravity, dt, T):
        self.x, self.v, self.f = (field(T + 1, *x0.shape) for _ in range(3))
        self.rest, self.ends = field(len(rest)), ti.field(int, ends.shape)
        self.ends.from_torch(ends.int())
        self.stiffness, self.decay, self.gravity, self.dt = stiffness, decay, gravity, dt
        self.setup(T, [self.x, self.v, self.f, self.rest],
                   [(self.x, 0), (self.v, 0), (self.rest, None)], (self.x, T))  # fmt: skip

    @ti.kernel
    def pull(self, t: int):
        for s in self.rest:
            i, j = self.ends[s, 0], self.ends[s, 1]
            e = ti.Vector([self.x[t, j, k] - self.x[t, i, k] for k in ti.static(range(3))])
            n = e.norm()
            force = e * (self.stiffness * (n - self.rest[s]) / n)
            for k in ti.static(range(3)):
                ti.atomic_add(self.f[t, i, k], force[k])
                ti.atomic_add(self.f[t, j, k], -force[k])

    @ti.kernel
    def move(self, t: int):
        for p in range(self.x.shape[1]):
            for k in ti.static(range(3)):
                force = self.f[t, p, k] - (self.gravity if k == 1 else 0.0)
                self.v[t + 1, p, k] = self.decay * self.v[t, p, k] + self.dt * force
                self.x[t + 1, p, k] = self.x[t, p, k] + self.dt * self.v[t + 1, p, k]

    def forward(self):
        self.f.fill(0.0)
        super().forward()

    def step(self, t):
        self.pull(t)
        self.move(t)

    def step_back(self, t):
        self.move.grad(t)
        self.pull.grad(t)


@ti.data_oriented
class Wave(Fields):
    def __init__(self, first, *, a, b, T):
        self.u, self.a, self.b, self.n = field(T + 2, *first.shape), a, b, len(first)
        self.setup(T, [self.u], [(self.u, 1)], (self.u, T + 1))

    @ti.func
    def at(self, t, i, j):
        return self.u[t, i, j] if 0 <= i < self.n and 0 <= j < self.n else 0.0

    @ti.func
    def bend(self, t, i, j):
        return (self.at(t, i - 1, j) + self.at(t, i + 1, j) + self.at(t, i, j - 1)
                + self.at(t, i, j + 1) - 4.0 * self.u[t, i, j])  # fmt: skip

    @ti.kernel
    def oscillate(self, t: int):
        for i, j in ti.ndrange(self.n, self.n):
            self.u[t + 2, i, j] = (
                2.0 * self.u[t + 1, i, j] - self.u[t, i, j]
                + self.a * self.bend(t + 1, i, j) - self.b * self.bend(t, i, j)
            )  # fmt: skip

    def step(self, t):
        self.oscillate(t)

    def step_back(self, t):
        self.oscillate.grad(t)


@ti.data_oriented
class Balls(Fields):
    def __init__(self, x0, v0, g, *, bounce, dt, T):
        self.x, self.v = (field(T + 1, *x0.shape) for _ in range(2))
        self.g, self.bounce, self.dt = ti.field(float, g.shape), bounce, dt
        self.g.from_torch(g)
        self.setup(T, [self.x, self.v], [(self.x, 0), (self.v, 0)], (self.x, T))

    @ti.kernel
    def fly(self, t: int):
        for i, d in ti.ndrange(self.x.shape[1], self.x.shape[2]):
            new = self.v[t, i, d] + self.dt * self.g[d]
            if self.x[t, i, d] + self.dt * new < 0.0:
                impact = -self.x[t, i, d] / new
                self.v[t + 1, i, d] = -self.bounce * new
                self.x[t + 1, i, d] = -self.bounce * new * (self.dt - impact)
            else:
                self.v[t + 1, i, d] = new
                self.x[t + 1, i, d] = self.x[t, i, d] + self.dt * new

    def step(self, t):
        self.fly(t)

    def step_back(self, t):
        self.fly.grad(t)
