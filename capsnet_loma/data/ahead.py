"""An iterator whose items a thread makes before they are asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")

THREAD = "batches"
_END: Any = object()


def ahead(make: Callable[[], Iterator[Item]], depth: int = 3) -> Generator[Item, None, None]:
    """The items of ``make()``, of which a thread keeps up to ``depth`` ready.

    The thread starts with the first ``next`` and ends when the iterator is used up, closed or
    dropped, also by an exception of its user. What ``make`` or its iterator raises comes out of
    ``next``, after the items before it.
    """
    pool = ThreadPoolExecutor(1, THREAD)
    try:
        items = pool.submit(make).result()
        coming = deque(pool.submit(next, items, _END) for _ in range(depth))
        while (item := coming.popleft().result()) is not _END:
            coming.append(pool.submit(next, items, _END))
            yield item
    finally:
        # The collector may drop an iterator in any thread, also in its own.
        own = threading.current_thread().name.startswith(THREAD)
        pool.shutdown(wait=not own, cancel_futures=True)
