"""A command that several processes run at once: what is wrong with its options is said once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import click

_PATIENCE = 10.0  # seconds; a launcher ends all processes sooner, when it sees the first one end


class OneOfSeveral(click.Command):
    """All processes find the same errors in the same options: rank 0 prints them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with said_once():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would say that it aborts
            if _is_main():
                raise
            raise SystemExit(130) from None


@contextlib.contextmanager
def said_once() -> Iterator[None]:
    """For what all of them check before they know of each other."""
    try:
        yield
    except click.UsageError as error:
        if _is_main():
            raise
        time.sleep(_PATIENCE)
        raise SystemExit(error.exit_code) from None


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"
