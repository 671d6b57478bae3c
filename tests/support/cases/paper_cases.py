"""Programs as one writes them from a paper's pseudo-code, each beside the same in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from index_cases import Case, Indices, Values
from torch import Tensor


def _lstm(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h, c = torch.zeros_like(b[0]), torch.zeros_like(b[0])
    states = []
    for row in x:
        i, f, g, o = (w[k] @ row + u[k] @ h + b[k] for k in range(4))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states), c


def _gru(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    h = torch.zeros_like(w[0, :, 0])
    for row in x:
        r, z = (torch.sigmoid(w[k] @ row + u[k] @ h) for k in range(2))
        h = z * h + (1 - z) * torch.tanh(w[2] @ row + r * (u[2] @ h))
    return h


def _ctc(logits: Tensor, target: Tensor) -> Tensor:
    """As ``torch.nn.functional.ctc_loss``, which has no second derivative."""
    logp = torch.log_softmax(logits, 1)
    label = [0]
    for one in target.tolist():
        label += [one, 0]
    a = [logp[0, k] if s < 2 else None for s, k in enumerate(label)]
    for t in range(1, len(logp)):
        new: list[Tensor | None] = []
        for s, k in enumerate(label):
            skips = s > 1 and k not in (0, label[s - 2])
            near = [a[r] for r in (s, s - 1, s - 2)[: 3 if skips else 2] if r >= 0]
            known = [one for one in near if one is not None]
            new.append(torch.logsumexp(torch.stack(known), 0) + logp[t, k] if known else None)
        a = new
    return -torch.logsumexp(torch.stack([one for one in a[-2:] if one is not None]), 0)


def _kalman(z: Tensor, q: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    x, p = z.new_zeros(()), z.new_ones(())
    out, loss = [], z.new_zeros(())
    for one in z:
        p = p + q * q
        s = p + r * r
        loss = loss + 0.5 * (torch.log(s) + (one - x) ** 2 / s)
        k = p / s
        x, p = x + k * (one - x), (1 - k) * p
        out.append(x)
    return torch.stack(out), loss


def _crf(emissions: Tensor, moves: Tensor) -> Tensor:
    a = emissions[0]
    for row in emissions[1:]:
        a = torch.logsumexp(a[:, None] + moves, 0) + row
    return torch.logsumexp(a, 0)


def _viterbi(emissions: Tensor, moves: Tensor, temperature: float) -> Tensor:
    a = emissions[0]
    for row in emissions[1:]:
        a = temperature * torch.logsumexp((a[:, None] + moves) / temperature, 0) + row
    return temperature * torch.logsumexp(a / temperature, 0)


def _gradients(a: Tensor, b: Tensor, steps: int) -> Tensor:
    a = a @ a.T + torch.eye(len(b), dtype=b.dtype)
    x, r = torch.zeros_like(b), b
    p = r
    for _ in range(steps):
        q = a @ p
        alpha = (r @ r) / (p @ q)
        x, new = x + alpha * p, r - alpha * q
        p, r = new + (new @ new) / (r @ r) * p, new
    return x


def _leapfrog(q: Tensor, p: Tensor, dt: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(steps):
        p = p - 0.5 * dt * torch.sin(q)
        q = q + dt * p
        p = p - 0.5 * dt * torch.sin(q)
    return q, p


def _smoothing(e: Tensor, moves: Tensor) -> Tensor:
    e, a = torch.softmax(e, 1), torch.softmax(moves, 1)
    forward, back = [e[0]], [torch.ones_like(e[0])]
    for row in e[1:]:
        forward.append((forward[-1] @ a) * row)
    for row in e[1:].flip(0):
        back.insert(0, a @ (row * back[0]))
    both = torch.stack(forward) * torch.stack(back)
    return both / both.sum(1, keepdim=True)


def _sinkhorn(c: Tensor, steps: int) -> Tensor:
    n, m = c.shape
    k = torch.exp(-c)
    u, v = torch.ones_like(c[:, 0]), torch.ones_like(c[0])
    for _ in range(steps):
        u = 1 / n / (k @ v)
        v = 1 / m / (k.T @ u)
    return (u[:, None] * k * v * c).sum()


def _automaton(x: Tensor, w: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        x = x + torch.tanh(F.conv2d(x[None], w, padding=1)[0])
    return x


def _selective(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    h = torch.zeros_like(a)
    out = []
    for t in range(x.shape[0]):
        step = F.softplus(d * x[t])[:, None]
        h = torch.exp(-step * a**2) * h + step * b[t] * x[t][:, None]
        out.append(h @ c[t])
    return torch.stack(out)


def _warped(x: Tensor, flow: Tensor) -> Tensor:
    h, w = flow.shape[1:]
    u = torch.arange(h)[:, None] + flow[0]
    v = torch.arange(w) + flow[1]
    around = F.pad(x, (9, 9, 9, 9))
    y = torch.zeros_like(x)
    for a in (u.detach().floor(), u.detach().floor() + 1):
        for b in (v.detach().floor(), v.detach().floor() + 1):
            there = around[:, a.long() + 9, b.long() + 9]
            y = y + (1 - (u - a).abs()) * (1 - (v - b).abs()) * there
    return y


def _factors(a: Tensor) -> tuple[Tensor, Tensor]:
    m = a @ a.T + 2 * torch.eye(len(a), dtype=a.dtype)
    lower: Tensor = torch.linalg.cholesky(m)
    left = lower / lower.diagonal()
    right = left.new_zeros(()) + lower.T * lower.diagonal()[:, None]
    m = left.tril(-1) + right.triu()
    for k in range(len(a)):
        column = torch.cat([m[: k + 1, 0], 2 * m[k:-1, 0]])
        m = torch.cat([column[:, None], m[:, 1:]], 1)
    return lower, m


def _haar(x: Tensor) -> Tensor:
    done: list[Tensor] = []
    while (h := x.shape[1] // 2) > 0:
        done = [x[:, 2 * h :], *done]
        even, odd = x[:, : 2 * h : 2], x[:, 1 : 2 * h : 2]
        x, done = (even + odd) / 2**0.5, [(even - odd) / 2**0.5, *done]
    return torch.cat([x, *done], 1)


PAPERS = [
    Case("lstm", """
def lstm(x : In[Tensor[T, D]], W : In[Tensor[4, H, D]], U : In[Tensor[4, H, H]],
         b : In[Tensor[4, H]]) -> tuple[Tensor[T, H], Tensor[H]]:
    out : Tensor[T, H]
    h : Tensor[H]
    c : Tensor[H]
    for t in range(T):
        z : Tensor[4, H]
        z[g, k] = b[g, k] + sum(W[g, k, d] * x[t, d] for d in D)
        z[g, k] += U[g, k, j] * h[j]
        c[k] = sigmoid(z[1, k]) * c[k] + sigmoid(z[0, k]) * tanh(z[2, k])
        h[k] = sigmoid(z[3, k]) * tanh(c[k])
        out[t, k] = h[k]
    return out, c
""", _lstm, ((3, 2), (4, 2, 2), (4, 2, 2), (4, 2))),
    Case("gru", """
def gru(x : In[Tensor[T, D]], W : In[Tensor[3, H, D]], U : In[Tensor[3, H, H]]) -> Tensor[H]:
    h : Tensor[H]
    for t in range(T):
        r : Tensor[H]
        z : Tensor[H]
        n : Tensor[H]
        r[k] = sigmoid(sum(W[0, k, d] * x[t, d] for d in D) + sum(U[0, k, j] * h[j] for j in H))
        z[k] = sigmoid(sum(W[1, k, d] * x[t, d] for d in D) + sum(U[1, k, j] * h[j] for j in H))
        n[k] = tanh(sum(W[2, k, d] * x[t, d] for d in D)
                    + r[k] * sum(U[2, k, j] * h[j] for j in H))
        h[k] = z[k] * h[k] + (1.0 - z[k]) * n[k]
    return h
""", _gru, ((3, 2), (3, 2, 2), (3, 2, 2))),
    Case("ctc", """
NEVER : float = -1e30

def add(a : In[float], b : In[float]) -> float:
    m : float = max(a, b)
    return m + log(exp(a - m) + exp(b - m))

def ctc(logits : In[Tensor[T, C]], target : In[IntTensor[L]]) -> float:
    logp = log_softmax(logits, 1)
    label : IntTensor[2 * L + 1]
    label[2 * l + 1] = target[l]
    a : Tensor[T, 2 * L + 1]
    for s in range(2 * L + 1):
        a[0, s] = logp[0, label[s]] if s < 2 else NEVER
    for t in range(1, T):
        for s in range(2 * L + 1):
            m : float = a[t - 1, s]
            if s > 0:
                m = add(m, a[t - 1, s - 1])
            if s > 1:
                if label[s] != 0 and label[s] != label[s - 2]:
                    m = add(m, a[t - 1, s - 2])
            a[t, s] = m + logp[t, label[s]]
    return -add(a[T - 1, 2 * L], a[T - 1, 2 * L - 1])
""", _ctc, ((5, 3), Indices([1, 2]))),
    Case("kalman", """
def kalman(z : In[Tensor[T]], q : In[float], r : In[float]) -> tuple[Tensor[T], float]:
    x : Tensor[T + 1]
    p : Tensor[T + 1]
    p[0] = 1.0
    loss : float
    for t in range(T):
        before : float = p[t] + q * q
        s : float = before + r * r
        loss += 0.5 * (log(s) + (z[t] - x[t]) ** 2 / s)
        x[t + 1] = x[t] + before / s * (z[t] - x[t])
        p[t + 1] = (1.0 - before / s) * before
    return x[1:], loss
""", _kalman, ((4,), (), ())),
    Case("crf", """
def crf(emissions : In[Tensor[T, S]], moves : In[Tensor[S, S]]) -> float:
    a : Tensor[T, S]
    a[0] = emissions[0]
    for t in range(1, T):
        for j in range(S):
            m : float = max(a[t - 1, i] + moves[i, j] for i in S)
            a[t, j] = emissions[t, j] + m + log(
                sum(exp(a[t - 1, i] + moves[i, j] - m) for i in S))
    return logsumexp(a[T - 1], 0)[()]
""".replace("    a[0] = emissions[0]\n", "    a[0, j] = emissions[0, j]\n").replace(
        "    return logsumexp(a[T - 1], 0)[()]\n",
        "    top : float = max(a[T - 1, j] for j in S)\n"
        "    return top + log(sum(exp(a[T - 1, j] - top) for j in S))\n"),
        _crf, ((4, 3), (3, 3))),
    Case("soft_viterbi", """
def soft_viterbi(emissions : In[Tensor[T, S]], moves : In[Tensor[S, S]],
                 temperature : In[float] = 1.0) -> float:
    a : Tensor[T, S]
    a[0, j] = emissions[0, j]
    for t in range(1, T):
        a[t, j] = emissions[t, j] + temperature * log(
            sum(exp((a[t - 1, i] + moves[i, j]) / temperature) for i in S))
    return temperature * log(sum(exp(a[T - 1, j] / temperature) for j in S))
""", _viterbi, ((4, 3), (3, 3), Values(2.0))),
    Case("conjugate_gradients", """
def conjugate_gradients(M : In[Tensor[N, N]], b : In[Tensor[N]], steps : In[int]) -> Tensor[N]:
    A : Tensor[N, N]
    A[i, j] = sum(M[i, k] * M[j, k] for k in N) + (1.0 if i == j else 0.0)
    x : Tensor[N]
    r : Tensor[N] = b
    p : Tensor[N] = b
    for t in range(steps):
        q : Tensor[N]
        q[i] += A[i, j] * p[j]
        old : float
        old += r[i] * r[i]
        along : float
        along += p[i] * q[i]
        alpha : float = old / along
        x[i] += alpha * p[i]
        r[i] -= alpha * q[i]
        new : float
        new += r[i] * r[i]
        p[i] = r[i] + new / old * p[i]
    return x
""", _gradients, ((3, 3), (3,), 2)),
    Case("leapfrog", """
def leapfrog(q0 : In[Tensor[N]], p0 : In[Tensor[N]], dt : In[float], steps : In[int]
             ) -> tuple[Tensor[N], Tensor[N]]:
    q : Tensor[N] = q0
    p : Tensor[N] = p0
    for t in range(steps):
        p[i] -= 0.5 * dt * sin(q[i])
        q[i] += dt * p[i]
        p[i] -= 0.5 * dt * sin(q[i])
    return q, p
""", _leapfrog, ((3,), (3,), (), 3)),
    Case("smoothing", """
def smoothing(emissions : In[Tensor[T, S]], moves : In[Tensor[S, S]]) -> Tensor[T, S]:
    e = softmax(emissions, 1)
    a = softmax(moves, 1)
    forward : Tensor[T, S]
    back : Tensor[T, S]
    forward[0, i] = e[0, i]
    back[T - 1, i] = 1.0
    for t in range(1, T):
        forward[t, j] = e[t, j] * sum(forward[t - 1, i] * a[i, j] for i in S)
    for t in range(T - 2, -1, -1):
        back[t, i] = sum(a[i, j] * e[t + 1, j] * back[t + 1, j] for j in S)
    p : Tensor[T, S]
    p[t, i] = forward[t, i] * back[t, i] / sum(forward[t, j] * back[t, j] for j in S)
    return p
""", _smoothing, ((4, 3), (3, 3))),
    Case("sinkhorn", """
def sinkhorn(C : In[Tensor[N, M]], steps : In[int]) -> float:
    K = exp(-C)
    u : Tensor[N]
    v = ones([M])
    for t in range(steps):
        u[i] = 1.0 / N / sum(K[i, j] * v[j] for j in M)
        v[j] = 1.0 / M / sum(K[i, j] * u[i] for i in N)
    return sum(u[i] * K[i, j] * v[j] * C[i, j] for i in N for j in M)
""", _sinkhorn, ((3, 4), 3)),
    Case("automaton", """
def automaton(x0 : In[Tensor[C, H, W]], k : In[Tensor[C, C, 3, 3]], steps : In[int]
              ) -> Tensor[C, H, W]:
    x : Tensor[C, H, W] = x0
    for t in range(steps):
        x[o, h, w] += tanh(sum(k[o, c, p, q] * zero_pad(x[c, h + p - 1, w + q - 1])
                               for c in C for p in range(3) for q in range(3)))
    return x
""", _automaton, ((2, 3, 3), (2, 2, 3, 3), 2)),
    Case("selective_scan", """
def selective_scan(x : In[Tensor[T, D]], A : In[Tensor[D, S]], B : In[Tensor[T, S]],
                   C : In[Tensor[T, S]], delta : In[Tensor[D]]) -> Tensor[T, D]:
    y : Tensor[T, D]
    h : Tensor[T + 1, D, S]
    for t in range(T):
        step : Tensor[D]
        step[d] = softplus(delta[d] * x[t, d])
        h[t + 1, d, s] = exp(-step[d] * A[d, s] ** 2) * h[t, d, s] + step[d] * B[t, s] * x[t, d]
        y[t, d] = sum(C[t, s] * h[t + 1, d, s] for s in S)
    return y
""", _selective, ((3, 2), (2, 2), (3, 2), (3, 2), (2,))),
    Case("warped", """
def pixel(x : In[Tensor[C, H, W]], c : In[int], h : In[int], w : In[int]) -> float:
    v : float = 0.0
    if 0 <= h < H and 0 <= w < W:
        v = x[c, h, w]
    return v


def warped(x : In[Tensor[C, H, W]], flow : In[Tensor[2, H, W]]) -> Tensor[C, H, W]:
    y : Tensor[C, H, W]
    for h in range(H):
        for w in range(W):
            u : float = h + flow[0, h, w]
            v : float = w + flow[1, h, w]
            a : int = int(floor(u))
            b : int = int(floor(v))
            for c in range(C):
                y[c, h, w] = (a + 1 - u) * (b + 1 - v) * pixel(x, c, a, b)
                y[c, h, w] += (a + 1 - u) * (v - b) * pixel(x, c, a, b + 1)
                y[c, h, w] += (u - a) * (b + 1 - v) * pixel(x, c, a + 1, b)
                y[c, h, w] += (u - a) * (v - b) * pixel(x, c, a + 1, b + 1)
    return y
""", _warped, ((2, 3, 4), (2, 3, 4))),
    Case("factors", """
def factors(A : In[Tensor[N, N]]) -> tuple[Tensor[N, N], Tensor[N, N]]:
    M = A @ transpose(A, 0, 1)
    for k in range(N):
        M[k, k] += 2.0
    L : Tensor[N, N]
    for k in range(N):
        L[k, k] = sqrt(M[k, k] - sum(L[k, j] ** 2 for j in range(k)))
        L[k + 1:, k] = (M[k + 1:, k] - L[k + 1:, :k] @ L[k, :k]) / L[k, k]
    for k in range(N):
        M[k + 1:, k] /= max(M[k, k], 0.1, -1.0)
        M[k + 1:, k + 1:] -= M[k + 1:, k:k + 1] * M[k:k + 1, k + 1:]
    for k in range(N):
        M[k + 1:, 0] = 2.0 * M[k:N - 1, 0]  # all of them as they were
    return L, M
""", _factors, ((3, 3),)),
    Case("haar", """
def haar(x : In[Tensor[B, N]]) -> Tensor[B, N]:
    y = x
    n : int = N
    while (n > 1, max_iter := 60):
        h : int = n // 2
        old = y
        y[:, :h] = (old[:, 0:2 * h:2] + old[:, 1:2 * h:2]) / sqrt(2.0)
        y[:, h:2 * h] = (old[:, 0:2 * h:2] - old[:, 1:2 * h:2]) / sqrt(2.0)
        n = h
    return y
""", _haar, ((2, 7),)),
]  # fmt: skip
