"""Programs whose statements run in kernels, in blocks and in tiles."""

from __future__ import annotations

# A product in tiles when it is differentiated, inside a function of its own, and a subscript that
# may be wrong inside a function that is inlined.
CALLS = """
def predicted(w : In[Tensor[I, R, O, K]], x : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
    u : Tensor[B, I, R, O]
    u[b, i, r, o] += w[i, r, o, k] * x[b, r, k]
    return u

def tiles(w : In[Tensor[I, R, O, K]], x : In[Tensor[B, R, K]]) -> Tensor[B, I, O]:
    u = predicted(w, x)
    s : Tensor[B, I, O]
    s[b, i, o] = sum(u[b, i, r, o] for r in R)
    a : Tensor[B, I, R]
    a[b, i, r] = sum(tanh(u[b, i, r, o] * s[b, i, o]) for o in O)
    v : Tensor[B, I, O]
    v[b, i, o] = sum(a[b, i, r] * u[b, i, r, o] for r in R)
    return v

def shifted(x : In[Tensor[B, N]], k : In[int]) -> Tensor[B, N]:
    y : Tensor[B, N]
    z : Tensor[B, N]
    y[b, j] = x[b, j] * x[b, j]
    z[b, j] = y[b, j] + y[b, k]
    return z

def calls_shifted(x : In[Tensor[B, N]], k : In[int]) -> Tensor[B, N]:
    return shifted(x, k)
"""
# Also a kernel over rows with private tensors and a loop, and one of blocks.
TEXT = (
    CALLS
    + """
def rows(x : In[Tensor[B, N]], n : In[int]) -> Tensor[B, N]:
    m : Tensor[B]
    e : Tensor[B, N]
    h : Tensor[B, N]
    y : Tensor[B, N]
    for t in range(n):
        m[b] = no_diff(sum(h[b, j] for j in N)) / (1.0 + N)
        e[b, j] = exp(-(h[b, j] - m[b]) * (h[b, j] - m[b]))
        y[b, j] += e[b, j] * x[b, j]
        h[b, j] = tanh(y[b, j] + 0.5 * h[b, j])
    return y

def blocks(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    h : Tensor[N]
    y : Tensor[N]
    for t in range(n):
        h[i] = tanh(0.5 * h[i] + x[i])
        y[i] += h[i] * h[i] + 0.1 * x[0]
    return y
"""
)
