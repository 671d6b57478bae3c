"""Kernels as the CUDA backend prints them, written by hand.

What a kernel of several steps writes is not ``__restrict``: compilers keep the values of such
tensors over barriers.
"""

from __future__ import annotations


def _kernel(parameters: str, numbers: str, body: str) -> str:
    names = numbers.split()
    given = "".join(f"LOMA_NUMBER_GIVEN({name}), " for name in names)
    known = " ".join(f"LOMA_NUMBER({k}, {name});" for k, name in enumerate(names))
    return (
        f"LOMA_KERNEL kernel({parameters}, {given}const loma::Grid grid_) {{\n"
        f"  {known}\n  [[maybe_unused]] loma::Outside outside_(grid_);\n{body}}}\n"
    )


def reduction(kind: str, start: str, step: str, number: str = "real") -> str:
    """y[i] = kind of x[i, d] over d; ``step`` says how acc1_ takes v."""
    return _kernel(
        f"{number}* __restrict y_data_, const {number}* __restrict x_data_",
        "N D",
        f"""  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {{
    const int64_t i = p_;
    {number} acc1_ = {start};
    for (int64_t d = part_.first(0); d < part_.last(D); d += part_.step()) {{
      const {number} v = x_data_[D * i + d];
      {step}
    }}
    part_.template all_reduce<loma::{kind}>(acc1_);
    if (part_.leads()) y_data_[i] = acc1_;
  }});
""",
    )


ROW_SUMS = reduction("Sum", "0", "acc1_ += v;")
INT_SUMS = reduction("Sum", "0", "acc1_ += v;", "int64_t")
PRODUCTS = reduction("Prod", "1", "acc1_ *= v;")
LARGEST = reduction("Max", "loma::lowest<real>()", "acc1_ = loma::max<real>(acc1_, v);")
SMALLEST = reduction("Min", "loma::highest<real>()", "acc1_ = loma::min<real>(acc1_, v);")


def best(kind: str) -> str:
    """y[i] = the position of the best x[i, d]."""
    return _kernel(
        "int64_t* __restrict y_data_, const real* __restrict x_data_",
        "N D",
        f"""  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {{
    loma::{kind}<real> acc1_;
    for (int64_t d = part_.first(0); d < part_.last(D); d += part_.step()) {{
      acc1_.take(x_data_[D * p_ + d], d);
    }}
    part_.all_reduce(acc1_);
    if (part_.leads()) y_data_[p_] = acc1_.position;
  }});
""",
    )


# y[d] = a * (sum of x[i, d] over i) + the largest x[i, d]: two reductions of an iteration.
COLUMNS = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_, const loma::Number<real> a_data_",
    "N D",
    """  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {
    real acc1_ = real(0);
    for (int64_t i = part_.first(0); i < part_.last(N); i += part_.step()) {
      acc1_ += x_data_[D * i + p_];
    }
    part_.template all_reduce<loma::Sum>(acc1_);
    real acc2_ = loma::lowest<real>();
    for (int64_t i = part_.first(0); i < part_.last(N); i += part_.step()) {
      acc2_ = loma::max<real>(acc2_, x_data_[D * i + p_]);
    }
    part_.template all_reduce<loma::Max>(acc2_);
    if (part_.leads()) y_data_[p_] = a_data_[0] * acc1_ + acc2_;
  });
""",
)

# e = exp(x[i, :] - max), y[i, :] = e / sum(e), b[i] = where x[i, :] is largest, c[i, k] = the sum
# of e over the k-th part of M elements.
SOFTMAX = _kernel(
    "real* y_data_, int64_t* b_data_, real* c_data_, const real* __restrict x_data_",
    "D M offset0_",
    """  loma::iterations(grid_, [&](const int64_t i, const auto& team_, char* const memory_) {
    real *const t = reinterpret_cast<real*>(memory_), *const m = t, *const s = t + 1;
    real* const e = reinterpret_cast<real*>(memory_ + offset0_);
    team_.each(1, D, false, [&](const int64_t, const auto& part_) {
      real acc1_ = loma::lowest<real>();
      for (int64_t d = part_.first(0); d < part_.last(D); d += part_.step()) {
        acc1_ = loma::max<real>(acc1_, x_data_[D * i + d]);
      }
      part_.template all_reduce<loma::Max>(acc1_);
      if (part_.leads()) *m = acc1_;
    });
    team_.each(D, 1, [&](const int64_t p_, const auto& part_) {
      if (part_.leads()) e[p_] = std::exp(x_data_[D * i + p_] - *m);
    });
    team_.each(1, D, false, [&](const int64_t, const auto& part_) {
      real acc1_ = real(0);
      for (int64_t d = part_.first(0); d < part_.last(D); d += part_.step()) acc1_ += e[d];
      part_.template all_reduce<loma::Sum>(acc1_);
      if (part_.leads()) *s = acc1_;
      loma::Argmax<real> acc2_;
      for (int64_t d = part_.first(0); d < part_.last(D); d += part_.step()) acc2_.take(e[d], d);
      part_.all_reduce(acc2_);
      if (part_.leads()) b_data_[i] = acc2_.position;
    });
    const int64_t parts = D / loma::nonzero(M, "f: line 3: ");
    team_.each(parts, M, false, [&](const int64_t p_, const auto& part_) {
      real acc1_ = real(0);
      for (int64_t d = part_.first(0); d < part_.last(M); d += part_.step()) acc1_ += e[M * p_ + d];
      part_.template all_reduce<loma::Sum>(acc1_);
      if (part_.leads()) c_data_[parts * i + p_] = acc1_;
    });
    team_.each(D, 1, [&](const int64_t p_, const auto& part_) {
      if (part_.leads()) y_data_[D * i + p_] = e[p_] / *s;
    });
  });
""",
)

# Steps that read what other threads wrote, without a reduction between: y[i, :] = x[i, ::-1] and
# z[i, :] = x[i, :] + x[i, -1] + 1.
REVERSED = _kernel(
    "real* y_data_, real* z_data_, const real* __restrict x_data_",
    "D",
    """  loma::iterations(grid_, [&](const int64_t i, const auto& team_, char* const memory_) {
    real* const e = reinterpret_cast<real*>(memory_);
    team_.each(D, 1, [&](const int64_t p_, const auto&) { e[p_] = x_data_[D * i + p_]; });
    team_.each(D, 1, [&](const int64_t p_, const auto&) { y_data_[D * i + p_] = e[D - 1 - p_]; });
    team_.each(1, 1, [&](const int64_t, const auto&) { e[0] = e[D - 1] + real(1); });
    team_.each(D, 1, [&](const int64_t p_, const auto&) {
      z_data_[D * i + p_] = e[0] + x_data_[D * i + p_];
    });
  });
""",
)

# y[p] = x[q[p]], checked where it reads; and 7 // n.
GATHER = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_, const int64_t* __restrict q_data_",
    "N n",
    """  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {
    const int64_t rest = loma::floordiv(7, loma::nonzero(n, "f: line 2: "));
    if (part_.leads()) y_data_[p_] = x_data_[outside_.clamp(q_data_[p_], N, 1)] + real(rest);
  });
  outside_.check(1, "f: line 3: ", "q[p]", "x", 0, N);
""",
)

# Nothing of the special functions is left out; y has as many elements as there are lines.
SPECIAL = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_",
    "N",
    """  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {
    const real x = x_data_[p_];
    real* const y = y_data_ + 10 * p_;
    y[0] = loma::sigmoid<real>(x);
    y[1] = loma::softplus<real>(x);
    y[2] = loma::vector::tanh<real>(x);
    y[3] = loma::lgamma<real>(x);
    y[4] = loma::digamma<real>(x);
    y[5] = loma::polygamma<real>(1, x);
    y[6] = loma::real_mod<real>(x, real(0.7));
    y[7] = loma::real_floordiv<real>(x, real(0.7));
    y[8] = std::nearbyint(x) + loma::sign<real>(x);
    y[9] = loma::vector::erf<real>(x) + loma::clamp<real>(x, real(-1), real(2));
  });
""",
)

# Quotients.
QUOTIENTS = _kernel(
    "real* __restrict y_data_, const real* __restrict a_data_, const real* __restrict b_data_",
    "N",
    """  loma::statement(grid_, [&](const int64_t p_, const auto& part_) {
    y_data_[p_] = loma::divide<real>(a_data_[p_], b_data_[p_]);
  });
""",
)

# Plain code in one thread.
SERIAL = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_",
    "N",
    """  real s = real(0);
  for (int64_t i = 0; i < N; ++i) {
    s = s * real(0.5) + x_data_[i];
    y_data_[i] = s;
  }
""",
)

# Each element with where it is, as a statement whose threads take some side by side.
PLACES = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_",
    "N D",
    """  loma::statement(grid_, D, [&](const auto p_, const auto& part_) {
    const int64_t d = loma::remainder(p_, D);
    const int64_t i = loma::quotient(p_, D);
    y_data_[D * i + d] = x_data_[D * i + d] + 1000 * i + d;
  });
""",
)

# The same of the rows of x[i], in fused iterations, then sums over them, of columns side by side.
COLUMNS_OF_PARTS = _kernel(
    "real* __restrict y_data_, real* __restrict s_data_, int64_t* __restrict b_data_, "
    "const real* __restrict x_data_",
    "R D",
    """  loma::iterations(grid_, [&](const int64_t i, const auto& team_, char*) {
    team_.beside(R * D, D, [&](const auto p_, const auto& part_) {
      const int64_t d = loma::remainder(p_, D);
      const int64_t r = loma::quotient(p_, D);
      y_data_[R * D * i + D * r + d] = x_data_[R * D * i + D * r + d] + 10 * r + d;
    });
    team_.each(D, R, true, [&](const int64_t d, const auto& part_) {
      real acc1_ = 0;
      loma::Argmax<real> acc2_;
      loma::over(part_, 0, R, [&](const int64_t r) {
        acc1_ += y_data_[R * D * i + D * r + d];
        acc2_.take(x_data_[R * D * i + D * r + d], r);
      });
      part_.template all_reduce<loma::Sum, 0>(acc1_);
      if (part_.leads()) s_data_[D * i + d] = acc1_;
      part_.all_reduce(acc2_);
      if (part_.leads()) b_data_[D * i + d] = acc2_.position;
    });
  });
""",
)

# y[i, d] += x[i, d] + 1000 * i + d, as a kernel and in fused iterations of rows of y[i].
ADDED = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_",
    "N D",
    """  loma::adding<real>(grid_, D, [&](const auto p_, const auto& part_) {
    const int64_t d = loma::remainder(p_, D);
    const int64_t i = loma::quotient(p_, D);
    part_.add(y_data_[p_], x_data_[p_] + 1000 * i + d);
  });
""",
)
ADDED_IN_TEAMS = _kernel(
    "real* __restrict y_data_, const real* __restrict x_data_",
    "N D",
    """  loma::iterations(grid_, [&](const int64_t i, const auto& team_, char*) {
    team_.template adding<real>(N * D, D, [&](const auto p_, const auto& part_) {
      const int64_t d = loma::remainder(p_, D);
      const int64_t r = loma::quotient(p_, D);
      part_.add(y_data_[N * D * i + p_], x_data_[N * D * i + p_] + 1000 * r + d);
    });
  });
""",
)

# y[b, m, n] = sum of w[m, n, k] * x[b, m, k] - w[m, n, k] over k: a thread may have several b, and
# several n for each of these, or several m.
SEVERAL = """#include "several.h"
""" + _kernel(
    "real* __restrict y_data_, const real* __restrict w_data_, const real* __restrict x_data_",
    "B M N K",
    """  loma::several_at_once(grid_, B, N, [&](const int64_t p_, const auto& part_) {
    const auto groups_ = loma::groups_beside(part_, N);
    const auto n = loma::several_beside(part_, loma::remainder(p_, groups_));
    const auto rest1_ = loma::quotient(p_, groups_);
    const auto m = loma::remainder(rest1_, M);
    const auto b = loma::several(part_, loma::quotient(rest1_, M));
    auto acc1_ = loma::start(part_, real(0));
    const auto at2_ = K * N * m + K * n;
    const auto at3_ = K * M * b + K * m;
    loma::over(part_, 0, K, [&](const int64_t k) {
      const auto w = loma::read(w_data_, at2_ + k);
      acc1_ = loma::fma<real>(w, loma::read(x_data_, at3_ + k), acc1_) - w;
    });
    part_.template all_reduce<loma::Sum, 0>(acc1_);
    if (part_.leads()) loma::write(y_data_, M * N * b + N * m + n, acc1_, false);
  });
""",
)
SEVERAL_IN_THE_MIDDLE = """#include "several.h"
""" + _kernel(
    "real* __restrict y_data_, const real* __restrict w_data_, const real* __restrict x_data_",
    "B M N K",
    """  loma::several_at_once(grid_, M, 1, [&](const int64_t p_, const auto& part_) {
    const auto n = loma::remainder(p_, N);
    const auto rest1_ = loma::quotient(p_, N);
    const auto m = loma::several(part_, loma::remainder(rest1_, loma::groups(part_, M)));
    const auto b = loma::quotient(rest1_, loma::groups(part_, M));
    auto acc1_ = loma::start(part_, real(0));
    loma::over(part_, 0, K, [&](const int64_t k) {
      const auto w = loma::read(w_data_, K * N * m + K * n + k);
      acc1_ = acc1_ + (w * loma::read(x_data_, K * M * b + K * m + k) - w);
    });
    part_.template all_reduce<loma::Sum, 0>(acc1_);
    if (part_.leads()) loma::write(y_data_, M * N * b + N * m + n, acc1_, true);
  });
""",
)

# The same of places that may lie outside: y[q, n] = sum of g[c, n] * x[c, n + q - 1] over c.
SEVERAL_TESTED = """#include "several.h"
""" + _kernel(
    "real* __restrict y_data_, const real* __restrict g_data_, const real* __restrict x_data_",
    "Q N C",
    """  loma::several_at_once(grid_, Q, N, [&](const int64_t p_, const auto& part_) {
    const auto groups_ = loma::groups_beside(part_, N);
    const auto rest1_ = loma::quotient(p_, groups_);
    const auto n = loma::several_beside(part_, p_ - rest1_ * groups_);
    const auto q = loma::several(part_, rest1_);
    auto acc1_ = loma::start(part_, real(0));
    loma::over(part_, 0, C, [&](const int64_t c) {
      const auto inside_ = loma::inside(c, C) && loma::inside(n + q - 1, N);
      const auto x = loma::read_if(inside_, x_data_, N * c + n + q - 1);
      const auto edge = loma::read_if(loma::inside(q - 1, Q), g_data_, N * c);
      acc1_ = loma::fma<real>(loma::read(g_data_, N * c + n), x, acc1_) + edge;
    });
    part_.template all_reduce<loma::Sum, 0>(acc1_);
    if (part_.leads()) loma::write(y_data_, N * q + n, acc1_, false);
  });
""",
)
