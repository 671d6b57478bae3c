"""An iterator whose items a thread makes before they are asked for."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_running: dict[threading.Thread, _Shelf[Any]] = {}


def ahead(make: Callable[[], Iterator[Item]], depth: int = 3) -> Generator[Item, None, None]:
    """The items of ``make()``, of which a thread keeps up to ``depth`` ready.

    The thread starts with the first ``next`` and ends when the iterator is used up, closed or
    dropped, also by an exception of its user. What ``make`` or its iterator raises comes out of
    ``next``, after the items before it.
    """
    shelf: _Shelf[Item] = _Shelf(depth)
    thread = threading.Thread(target=_fill, args=(make, shelf), name="batches", daemon=True)
    _running[thread] = shelf
    thread.start()
    try:
        while shelf.wait_for_item():
            yield shelf.take()
    finally:
        _end(thread, shelf)


def _end(thread: threading.Thread, shelf: _Shelf[Any]) -> None:
    shelf.close()
    # The collector may drop an iterator in any thread, also in its own.
    if thread is not threading.current_thread():
        thread.join()
    _running.pop(thread, None)


@atexit.register
def _end_all() -> None:
    """Python kills threads at exit, which aborts the process where one is inside of torch."""
    for thread, shelf in list(_running.items()):
        _end(thread, shelf)


def _fill(make: Callable[[], Iterator[Item]], shelf: _Shelf[Item]) -> None:
    try:
        for item in make():
            if not shelf.put(item):
                return
    except BaseException as error:
        shelf.end(error)
    else:
        shelf.end(None)


class _Shelf(Generic[Item]):
    """Holds up to ``depth`` items between two threads; either of them may end it."""

    def __init__(self, depth: int) -> None:
        self._items: deque[Item] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Waits for room; False when nobody will take the item any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None) -> None:
        """No item follows; whoever waits for one gets the error, if there is one."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def wait_for_item(self) -> bool:
        """Whether there is another item; raises the error that came instead."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._ended)
            if not self._items and self._error is not None:
                raise self._error
            return bool(self._items)

    def take(self) -> Item:
        """The next item, which must be there."""
        with self._changed:
            self._changed.notify_all()
            return self._items.popleft()

    def close(self) -> None:
        """No item is taken any more: drops what is there, and lets the other thread go on."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
