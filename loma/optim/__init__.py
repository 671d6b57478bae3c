"""Optimisers whose updates are loma programs: one fused kernel for each parameter and step.

    optimizer = loma.optim.Adam(model.parameters(), lr=1e-3)

They are :class:`torch.optim.Optimizer` subclasses with the meaning of ``torch.optim``'s, so that
parameter groups, schedulers, hooks and closures work; a ``state_dict`` loads both ways. The
formulas are in ``sgd.loma`` and ``adam.loma``. Every operation is rounded by itself, and each
element is computed from its own alone: a step gives the same bits for any number of threads and at
any place in memory, so that training that is resumed goes on as if it had not stopped.
"""

from loma.optim.adam import Adam, AdamW
from loma.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]
