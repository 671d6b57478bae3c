"""What a call costs: compiled functions on tiny tensors against one eager operator's call.

Prints, with and without gradients, the median time of a call and its ratio to eager ``x * y``.
"""

from __future__ import annotations

import torch

import loma
from loma.tools.measure import interleaved_medians

PROGRAM = """
def operator(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor[N]:
    return x * y

def statement(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor[N]:
    z : Tensor[N]
    z[i] = x[i] * y[i]
    return z
"""


def main() -> None:
    torch.set_num_threads(1)
    m = loma.compile(PROGRAM)
    y = torch.randn(4)
    for title, x in (
        ("without gradients", torch.randn(4)),
        ("with gradients", torch.randn(4, requires_grad=True)),
    ):
        calls = {
            "eager x * y": lambda x=x: x * y,
            "loma, an operator": lambda x=x: m.operator(x, y),
            "loma, an index statement": lambda x=x: m.statement(x, y),
        }
        times = interleaved_medians(calls, min_seconds=0.01)
        print(title)
        for name in calls:
            ratio = times.ratio(name, "eager x * y")
            print(f"  {name:26s} {1e6 * times.median(name):6.2f} us  {ratio:5.2f}x")


if __name__ == "__main__":
    main()
