"""Programs whose trees have what those of other tests lack."""

REGISTERS = """
def products(
    w : In[Tensor[R, K, 16]], x : In[Tensor[B, R, K]], c : In[Tensor[16]]
) -> Tensor[B, R, 16]:
    u : Tensor[B, R, 16]
    u[b, r, o] = sum(w[r, k, o] * x[b, r, k] * c[o] for k in K)
    return u

def known(d : In[Tensor[B, 5, 13]], x : In[Tensor[B, 5, 7]], c : In[Tensor[B]]) -> Tensor[5, 13, 7]:
    g : Tensor[5, 13, 7]
    g[r, o, k] = sum(d[b, r, o] * x[b, r, k] * c[b] for b in B)
    return g

def extremes(
    w : In[Tensor[K, 9]], x : In[Tensor[B, K]], y0 : In[Tensor[B, 9]]
) -> tuple[Tensor[B, 9], Tensor[B, 9], Tensor[B, 9]]:
    a : Tensor[B, 9]
    b : Tensor[B, 9]
    y : Tensor[B, 9] = y0
    a[i, o] = no_diff(max(w[k, o] * x[i, k] for k in K))
    b[i, o] = no_diff(prod(w[k, o] * x[i, k] for k in K))
    y[i, o] += no_diff(w[k, o] * x[i, k] * x[i, k])
    return a, b, y

def windows(x : In[Tensor[C, H, 11]], f : In[Tensor[3, 3, H, 11]]) -> Tensor[C, H, 11]:
    z : Tensor[C, H, 11]
    z[c, h, w] += no_diff(zero_pad(x[c, h + p - 1, w + q - 1]) * f[p, q, h, w])
    return z
"""

GUARDED = """
def guarded(x : In[Tensor[N, M]], c : In[Tensor[N]], n : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum(x[i, j] for j in range(min(n[i], M))) if c[i] > 0.0 else max(x[i, j] for j in M)
    return y
"""

# Sums into elements that several iterations may name, into a number, and one that is not
# made of lanes.
SUMS = """
def sums(
    x : In[Tensor[N, M]], p : In[IntTensor[N]], w : In[Tensor[M]]
) -> tuple[Tensor[N, M], Tensor[N], float]:
    y : Tensor[N, M]
    z : Tensor[N]
    s : float
    y[p[n], m] += x[n, m] * w[m]
    z[n] = sum(tanh(sum(x[n, k] for k in range(m + 1))) for m in M)
    s += x[n, m] * w[m]
    return y, z, s
"""

# What the host computes before loops reads tensors as the program does.
COUNTED = """
def counted(x : In[Tensor[N, M]], c : In[Tensor[N]], n : In[IntTensor[2, 2]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum(x[i, j] for j in range(min(n[1, 0], M))) if c[i] > 0.0 else 0.5
    for i in range(n[0, 1]):
        y[0] += 1.0
    return y
"""

# Elements that exist only where a condition holds, and a target's place where there are no terms.
MISSING = """
def missing(w : In[Tensor[P]], x : In[Tensor[C, C]], n : In[int]) -> float:
    s : float
    s += w[p] * (x[C - 1, n] if 0 <= n and n < C else 0.3)
    return s

def around(x : In[Tensor[N]], a : In[Tensor[A]]) -> Tensor[A]:
    y : Tensor[A]
    y[t % A] += x[t] * a[i]
    return y
"""

# A sum over rows beside what needs each row, and a sum in a branch that lanes do not compute.
STREAMED = """
def streamed(x : In[Tensor[N, M]]) -> Tensor[M]:
    e : Tensor[N, M]
    s : Tensor[N]
    y : Tensor[M]
    e[n, m] = exp(x[n, m])
    s[n] += e[n, m]
    y[m] += e[n, m] / s[n]
    return y

def remainders(x : In[Tensor[N, M]], c : In[Tensor[N]], k : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[n] = sum(x[n, m] * (m % k) for m in M) if c[n] > 0.0 else 0.0
    return y
"""

# A product of matrices for each group of rows.
CHOSEN = """
def chosen(
    x : In[Tensor[M, K]], w : In[Tensor[G, K, N]], group : In[IntTensor[M]],
) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[m, n] = sum(x[m, k] * w[group[m], k, n] for k in K)
    return y
"""

# Weights that exist for a few rows at a time, in loops that compute with the row's number, and sums
# over all of them.
ATTENTION = """
def attention(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, E]], scale : In[float],
) -> Tensor[B, T, E]:
    s : Tensor[B, T, S]
    m : Tensor[B, T]
    e : Tensor[B, T, S]
    z : Tensor[B, T]
    p : Tensor[B, T, S]
    y : Tensor[B, T, E]
    s[b, i, j] = scale * sum(q[b, i, d] * k[b, j, d] for d in D)
    m[b, i] = max(s[b, i, j] if j <= i else -1000000.0 for j in S)
    e[b, i, j] = exp(s[b, i, j] - m[b, i]) if j <= i else 0.0
    z[b, i] = sum(e[b, i, j] for j in S)
    p[b, i, j] = e[b, i, j] / z[b, i]
    y[b, i, d] = sum(p[b, i, j] * v[b, j, d] for j in S)
    return y

d_attention = rev_diff(attention)
"""

TURNED = """
def turned(x : In[Tensor[N, M]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[m, n] = 2.0 * x[n, m]
    return y
"""

# What channels share is kept for a strip of positions: places, weights, whether a place is inside.
KEPT = """
def sampled(
    x : In[Tensor[B, C, N]], p : In[IntTensor[B, P, Q]], w : In[Tensor[B, P, Q, 2]]
) -> tuple[Tensor[B, C, P, Q], Tensor[B, P, Q], Tensor[B, C, N + 3]]:
    y : Tensor[B, C, P, Q]
    s : Tensor[B, P, Q]
    v : Tensor[B, P, Q]
    z : Tensor[B, C, N + 3]
    y[b, c, i, j] = sum(zero_pad(x[b, c, p[b, i, j] + r]) * w[b, i, j, r] for r in range(2))
    s[b, i, j] = sum(zero_pad(x[b, c, 2 * p[b, i, j]]) for c in C)
    v[b, i, j] = exp(s[b, i, j])
    z[b, c, min(max(p[b, i, j], 0), N)] += y[b, c, i, j] * v[b, i, j] if p[b, i, j] > 1 else 0.0
    return y, s, z
"""

# Each element has its own number of rounds.
MASKED = """
def newton(a : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    for i in range(N):
        s : float = 1.0
        while (abs(s * s - a[i]) > 1e-5, max_iter := 40):
            s = 0.5 * (s + a[i] / s) if s > 0.0 else 1.0
        y[i] = s
    return y
"""

# What two results have in common is a variable of the loop that makes both.
SHARED = """
def shared(x : In[Tensor[N]]) -> tuple[Tensor[N], Tensor[N]]:
    z : Tensor[N]
    y : Tensor[N]
    w : Tensor[N]
    z[i] = sin(x[i])
    y[i] = z[i] * x[i]
    w[i] = z[i] + cos(z[i])
    return y, w
"""

CASES = {
    "turned": TURNED,
    "streamed": STREAMED,
    "chosen": CHOSEN,
    "attention": ATTENTION,
    "registers": REGISTERS,
    "guarded": GUARDED,
    "sums": SUMS,
    "counted": COUNTED,
    "missing": MISSING,
    "kept": KEPT,
    "masked": MASKED,
    "shared": SHARED,
}
