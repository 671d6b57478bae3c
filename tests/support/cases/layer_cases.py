"""Layers in the spelling that comes first to mind, each beside the same in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from index_cases import Case, Indices, Values
from torch import Tensor


def _lstm(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[0], u.shape[0])
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w + h @ u + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out, 1)


def _gru(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for row in x:
        (a, b, c), (p, q, s) = (w @ row).chunk(3), (u @ h).chunk(3)
        z = torch.sigmoid(b + q)
        h = (1 - z) * torch.tanh(c + torch.sigmoid(a + p) * s) + z * h
    return h


def _kalman(z: Tensor, a: Tensor, c: Tensor, q: Tensor, r: Tensor) -> Tensor:
    x, p, found = torch.zeros_like(c), torch.eye(len(c), dtype=c.dtype), z.new_zeros(())
    for one in z:
        x, p = a @ x, a @ p @ a.T + q @ q.T
        s = c @ p @ c + r**2
        k, e = p @ c / s, one - c @ x
        x, p = x + k * e, p - torch.outer(k, c @ p)
        found = found - 0.5 * (torch.log(s) + e * e / s)
    return found


def _solve(m: Tensor, b: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(m @ m.T + 3 * torch.eye(len(b), dtype=b.dtype), b)
    return solution


def _hmm(e: Tensor, moves: Tensor, start: Tensor) -> Tensor:
    e, moves, a = torch.softmax(e, 1), torch.softmax(moves, 1), torch.softmax(start, 0)
    a = a * e[0]
    for row in e[1:]:
        a = (a @ moves) * row
    return torch.log(a.sum())


def _powers(a: Tensor, x: Tensor) -> Tensor:
    y = (a @ a @ a.exp()).T
    y = y + y @ a
    y = y - y.T * (a @ a @ x)
    return y + y.T


def _agreement(u: Tensor) -> Tensor:
    logits, v = u.new_zeros(u.shape[:3]), u.new_zeros(())
    for _ in range(3):
        v = torch.tanh(torch.einsum("bir,biro->bio", torch.softmax(logits, 1), u))
        logits = logits + torch.einsum("biro,bio->bir", u, v)
    return v


def _volume(density: Tensor, color: Tensor) -> Tensor:
    alpha = 1 - torch.exp(-(density**2))
    left = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1]], 1), 1)
    return ((alpha * left)[..., None] * color).sum(1)


def _grid(x: Tensor, places: Tensor) -> Tensor:
    return F.grid_sample(x[None], places[None, None], align_corners=True)[0, :, 0]


def _runge_kutta(y: Tensor, w: Tensor, dt: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        a = torch.tanh(w @ y)
        b = torch.tanh(w @ (y + 0.5 * dt * a))
        c = torch.tanh(w @ (y + 0.5 * dt * b))
        y = y + dt / 6 * (a + 2 * b + 2 * c + torch.tanh(w @ (y + dt * c)))
    return y


def _spectral(w: Tensor, u: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        v = F.normalize(w.T @ u, dim=0)
        u = F.normalize(w @ v, dim=0)
    return w / (u @ w @ v)


def _alignment(s: Tensor, gap: Tensor) -> Tensor:
    n, m = s.shape
    h = [[s.new_zeros(()) for _ in range(m + 1)] for _ in range(n + 1)]
    for i in range(n):
        for j in range(m):
            near = [s.new_zeros(()), h[i][j] + s[i, j], h[i][j + 1] - gap, h[i + 1][j] - gap]
            h[i + 1][j + 1] = torch.logsumexp(torch.stack(near), 0)
    return torch.logsumexp(torch.stack([torch.stack(row[1:]) for row in h[1:]]), (0, 1))


def _experts(x: Tensor, gate: Tensor, w: Tensor) -> Tensor:
    v, e = torch.softmax(x @ gate, -1).topk(2, -1)
    return torch.einsum("bk,bkio,bi->bo", v / v.sum(-1, keepdim=True), w[e], x)


def _tree(x: Tensor, left: Tensor, right: Tensor, w: Tensor) -> Tensor:
    h: list[Tensor] = []
    for row, a, b in zip(x, left.tolist(), right.tolist(), strict=True):
        h.append(torch.tanh(row if a < 0 else row + w[0] @ h[a] + w[1] @ h[b]))
    return h[-1]


def _attention(h: Tensor, source: Tensor, target: Tensor, a: Tensor, w: Tensor) -> Tensor:
    z = h @ w
    s = torch.exp(F.leaky_relu(z[source] @ a[0] + z[target] @ a[1], 0.2))
    total = torch.zeros_like(z[:, 0]).index_add(0, target, s)
    return torch.zeros_like(z).index_add(0, target, (s / total[target])[:, None] * z[source])


def _retention(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    steps = torch.arange(len(q))
    apart = steps[:, None] - steps
    return (q @ k.T * (decay ** apart.clamp(min=0)).tril()) @ v


def _process(x: Tensor, y: Tensor, width: Tensor) -> Tensor:
    k = torch.exp(-((x[:, None] - x) ** 2) / (2 * width**2)) + 0.1 * torch.eye(len(x)).to(x)
    lower: Tensor = torch.linalg.cholesky(k)
    a: Tensor = torch.linalg.solve_triangular(lower, y[:, None], upper=False)
    return 0.5 * (a * a).sum() + torch.log(lower.diagonal()).sum()


LAYERS = [
    Case("lstm_by_slices", """
def lstm_by_slices(x : In[Tensor[B, T, D]], W : In[Tensor[D, 4 * H]], U : In[Tensor[H, 4 * H]],
                   b : In[Tensor[4 * H]]) -> Tensor[B, T, H]:
    out : Tensor[B, T, H]
    h = zeros([B, H])
    c = zeros([B, H])
    for t in range(T):
        i, f, g, o = split(x[:, t] @ W + h @ U + b, [H, H, H, H], 1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)
        out[:, t] = h
    return out
""", _lstm, ((2, 3, 2), (2, 8), (2, 8), (8,))),
    Case("gru_by_slices", """
def gru_by_slices(x : In[Tensor[T, D]], W : In[Tensor[3 * H, D]], U : In[Tensor[3 * H, H]],
                  start : In[Tensor[H]]) -> Tensor[H]:
    h = start
    for t in range(T):
        a = W @ x[t]
        u = U @ h
        r = sigmoid(a[:H] + u[:H])
        z = sigmoid(a[H:2 * H] + u[H:2 * H])
        n = tanh(a[2 * H:] + r * u[2 * H:])
        h = (1.0 - z) * n + z * h
    return h
""", _gru, ((3, 2), (6, 2), (6, 2), (2,))),
    Case("kalman_matrices", """
def kalman_matrices(z : In[Tensor[T]], A : In[Tensor[N, N]], C : In[Tensor[N]],
                    Q : In[Tensor[N, N]], R : In[float]) -> float:
    x : Tensor[N]
    P : Tensor[N, N]
    P[i, i] = 1.0
    found = 0.0
    for t in range(T):
        x = A @ x
        P = A @ P @ transpose(A, 0, 1) + Q @ transpose(Q, 0, 1)
        s = C @ P @ C + R ** 2
        K = P @ C / s
        e = z[t] - C @ x
        x += K * e
        P[i, j] -= K[i] * sum(C[k] * P[k, j] for k in N)
        found -= 0.5 * (log(s) + e * e / s)
    return found
""", _kalman, ((3,), (2, 2), (2,), (2, 2), Values(0.9))),
    Case("elimination", """
def elimination(M : In[Tensor[N, N]], b : In[Tensor[N]]) -> Tensor[N]:
    A = M @ transpose(M, 0, 1)
    A[i, i] += 3.0
    x = b
    for k in range(N):
        for i in range(k + 1, N):
            f = A[i, k] / A[k, k]
            A[i] -= f * A[k]
            x[i] -= f * x[k]
    for i in reversed(range(N)):
        x[i] = (x[i] - sum(A[i, j] * x[j] for j in range(i + 1, N))) / A[i, i]
    return x
""", _solve, ((3, 3), (3,))),
    Case("scaled_hmm", """
def scaled_hmm(emissions : In[Tensor[T, S]], moves : In[Tensor[S, S]], start : In[Tensor[S]]
               ) -> float:
    e = softmax(emissions, 1)
    A = softmax(moves, 1)
    a = softmax(start, 0) * e[0]
    found = 0.0
    for t in range(1, T):
        c = sum(a)
        found += log(c)
        a = (a / c) @ A * e[t]
    return found + log(sum(a))
""", _hmm, ((4, 3), (3, 3), (3,))),
    Case("volume", """
def volume(density : In[Tensor[R, S]], color : In[Tensor[R, S, 3]]) -> Tensor[R, 3]:
    out : Tensor[R, 3]
    for r in range(R):
        left = 1.0
        for s in range(S):
            alpha = 1.0 - exp(-density[r, s] ** 2)
            out[r] += alpha * left * color[r, s]
            left *= 1.0 - alpha
    return out
""", _volume, ((2, 3), (2, 3, 3))),
    Case("grid_sample", """
def grid_sample(x : In[Tensor[C, H, W]], places : In[Tensor[P, 2]]) -> Tensor[C, P]:
    y : Tensor[C, P]
    for p in range(P):
        u = (places[p, 0] + 1.0) * 0.5 * (W - 1)
        v = (places[p, 1] + 1.0) * 0.5 * (H - 1)
        i = float2int(floor(v))
        j = float2int(floor(u))
        a = v - i
        b = u - j
        y[c, p] = ((1.0 - a) * (1.0 - b) * zero_pad(x[c, i, j])
                   + (1.0 - a) * b * zero_pad(x[c, i, j + 1])
                   + a * (1.0 - b) * zero_pad(x[c, i + 1, j])
                   + a * b * zero_pad(x[c, i + 1, j + 1]))
    return y
""", _grid, ((2, 3, 3), Values([[0.1, 0.3], [-0.7, 0.4], [0.8, -0.2], [-1.3, 0.9]])),
         second=False),  # PyTorch has no second derivative
    Case("runge_kutta", """
def slope(y : In[Tensor[N]], W : In[Tensor[N, N]]) -> Tensor[N]:
    return tanh(W @ y)

def runge_kutta(start : In[Tensor[N]], W : In[Tensor[N, N]], dt : In[float], steps : In[int]
                ) -> Tensor[N]:
    y = start
    for s in range(steps):
        a = slope(y, W)
        b = slope(y + 0.5 * dt * a, W)
        c = slope(y + 0.5 * dt * b, W)
        d = slope(y + dt * c, W)
        y += dt / 6.0 * (a + 2.0 * b + 2.0 * c + d)
    return y
""", _runge_kutta, ((3,), (3, 3), Values(0.1), 2)),
    Case("spectral_norm", """
def spectral_norm(W : In[Tensor[N, M]], start : In[Tensor[N]], steps : In[int]) -> Tensor[N, M]:
    u = start
    v = zeros([M])
    for i in range(steps):
        v = transpose(W, 0, 1) @ u
        v = v / norm(v)
        u = W @ v
        u = u / norm(u)
    return W / (u @ W @ v)
""", _spectral, ((3, 2), (3,), 2)),
    Case("alignment", """
def alignment(s : In[Tensor[N, M]], gap : In[float]) -> float:
    H : Tensor[N + 1, M + 1]
    for i in range(1, N + 1):
        for j in range(1, M + 1):
            near = stack([0.0, H[i - 1, j - 1] + s[i - 1, j - 1], H[i - 1, j] - gap,
                          H[i, j - 1] - gap])
            H[i, j] = logsumexp(near, 0)
    return logsumexp(H[1:, 1:], [0, 1])
""", _alignment, ((2, 3), Values(0.3))),
    Case("experts", """
def experts(x : In[Tensor[B, I]], gate : In[Tensor[I, E]], W : In[Tensor[E, I, O]]
            ) -> Tensor[B, O]:
    v, e = topk(softmax(x @ gate, -1), 2, -1)
    v = v / sum(v, [1], keepdim=True)
    y : Tensor[B, O]
    y[b, o] += v[b, k] * W[e[b, k], i, o] * x[b, i]
    return y
""", _experts, ((3, 2), (2, 4), (4, 2, 2))),
    Case("tree", """
def tree(x : In[Tensor[N, D]], left : In[IntTensor[N]], right : In[IntTensor[N]],
         W : In[Tensor[2, D, D]]) -> Tensor[D]:
    h : Tensor[N, D]
    for n in range(N):
        if left[n] < 0:
            h[n] = tanh(x[n])
        else:
            h[n] = tanh(x[n] + W[0] @ h[left[n]] + W[1] @ h[right[n]])
    return h[N - 1]
""", _tree, ((5, 2), Indices([-1, -1, 0, -1, 2]), Indices([-1, -1, 1, -1, 3]), (2, 2, 2))),
    Case("row_softmax", """
def row_softmax(x : In[Tensor[T, K]]) -> Tensor[T, K]:
    y : Tensor[T, K]
    for t in range(T):
        y[t, k] = exp(x[t, k]) / sum(exp(x[t]))
    return y
""", lambda x: torch.softmax(x, 1), ((3, 2),)),
    Case("retention", """
def retention(q : In[Tensor[T, D]], k : In[Tensor[T, D]], v : In[Tensor[T, E]], decay : In[float]
              ) -> Tensor[T, E]:
    y : Tensor[T, E]
    y[t, e] = sum(decay ** (t - s) * sum(q[t, d] * k[s, d] for d in D) * v[s, e]
                  for s in T if s <= t)
    return y
""", _retention, ((3, 2), (3, 2), (3, 2), Values(0.9))),
    Case("retention_by_range", """
def retention_by_range(q : In[Tensor[T, D]], k : In[Tensor[T, D]], v : In[Tensor[T, E]],
                       decay : In[float]) -> Tensor[T, E]:
    y : Tensor[T, E]
    y[t, e] = sum(decay ** (t - s) * sum(q[t, d] * k[s, d] for d in D) * v[s, e]
                  for s in range(t + 1))
    return y
""", _retention, ((3, 2), (3, 2), (3, 2), Values(0.9))),
    Case("filters_apart", """
def filters_apart(x : In[Tensor[B, C, H, W]], w : In[Tensor[C, 3, 2]], c : In[Tensor[C]]
                  ) -> Tensor[B, C, H - 2, W + 2]:
    k = reshape(w, [C, 1, 3, 2])
    return tanh(conv2d(sin(x), k, c, padding=[1, 2], dilation=[2, 2], groups=C))
""", lambda x, w, c: torch.tanh(
        F.conv2d(x.sin(), w[:, None], c, padding=(1, 2), dilation=2, groups=len(w))
    ), ((2, 3, 4, 3), (3, 3, 2), (3,))),
    Case("powers", """
def powers(a : In[Tensor[N, N]], x : In[Tensor[N]]) -> Tensor[N, N]:
    v = x
    y = exp(a)
    for t in range(2):
        v = a @ v
        y = a @ y
    y = transpose(y, 0, 1)
    y += y @ a
    y -= transpose(y, 0, 1) * v
    y += transpose(y, 0, 1)
    return y
""", _powers, ((3, 3), (3,))),
    Case("agreement", """
def agreement(u : In[Tensor[B, I, R, O]]) -> Tensor[B, I, O]:
    l = zeros([B, I, R])
    v = zeros([B, I, O])
    for t in range(3):
        s = reshape(reshape(softmax(l, 1), [B, I, 1, R]) @ u, [B, I, O])
        v = tanh(s)
        l += reshape(u @ reshape(v, [B, I, O, 1]), [B, I, R])
    return v
""", _agreement, ((2, 3, 4, 2),)),
    Case("scores_in_place", """
def scores_in_place(q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]]) -> Tensor[B, T, S]:
    s : Tensor[B, T, S]
    s[b, t, j] += q[b, t, d] * k[b, j, d]
    s[b, t, j] = s[b, t, j] * 0.5
    s[b, t, j] = tanh(s[b, t, j]) * s[b, t, j]
    return softmax(s, 2)
""", lambda q, k: torch.softmax(torch.tanh(0.5 * q @ k.mT) * (0.5 * q @ k.mT), 2),
        ((2, 3, 2), (2, 4, 2))),
    Case("online_softmax", """
def online_softmax(q : In[Tensor[T, D]], k : In[Tensor[S, D]], v : In[Tensor[S, E]]
                   ) -> Tensor[T, E]:
    out : Tensor[T, E]
    for t in range(T):
        m = -1e30
        z = 0.0
        total = zeros([E])
        for s in range(S):
            score = q[t] @ k[s]
            new = max(m, score)
            p = exp(score - new)
            z = z * exp(m - new) + p
            total = total * exp(m - new) + p * v[s]
            m = new
        out[t] = total / z
    return out
""", lambda q, k, v: torch.softmax(q @ k.T, 1) @ v, ((2, 3), (4, 3), (4, 2))),
    Case("gaussian_process", """
def gaussian_process(x : In[Tensor[N]], y : In[Tensor[N]], width : In[float]) -> float:
    L : Tensor[N, N]
    a : Tensor[N]
    found = 0.0
    for i in range(N):
        for j in range(i + 1):
            s = exp(-(x[i] - x[j]) ** 2 / (2.0 * width ** 2))
            if i == j:
                s += 0.1
            for k in range(j):
                s -= L[i, k] * L[j, k]
            if i == j:
                L[i, j] = sqrt(s)
            else:
                L[i, j] = s / L[j, j]
        a[i] = (y[i] - sum(L[i, k] * a[k] for k in range(i))) / L[i, i]
        found += 0.5 * a[i] ** 2 + log(L[i, i])
    return found
""", _process, ((3,), (3,), Values(0.8))),
    Case("graph_attention", """
def graph_attention(h : In[Tensor[N, F]], source : In[IntTensor[E]], target : In[IntTensor[E]],
                    a : In[Tensor[2, O]], W : In[Tensor[F, O]]) -> Tensor[N, O]:
    z = h @ W
    s : Tensor[E]
    s[e] = exp(leaky_relu(sum(z[source[e], o] * a[0, o] + z[target[e], o] * a[1, o] for o in O),
                          0.2))
    total : Tensor[N]
    total[target[e]] += s[e]
    y : Tensor[N, O]
    y[target[e], o] += s[e] / total[target[e]] * z[source[e], o]
    return y
""", _attention, ((3, 2), Indices([0, 1, 2, 0, 1]), Indices([1, 2, 0, 2, 1]), (2, 2), (2, 2))),
]  # fmt: skip
