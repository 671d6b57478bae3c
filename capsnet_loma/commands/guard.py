"""How a command ends: with its job's exit code, or with one message in place of a traceback."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from capsnet_loma.commands.console import Output

# Packages that the extra [capsnet] brings, by the names that pip knows.
PACKAGES = {
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "tensorboard": "tensorboard",
}


def guarded(job: Callable[..., int]) -> Callable[..., NoReturn]:
    """Ends with what the job returns; an error of a program, a file, a compiler or a process is a
    message."""

    @functools.wraps(job)
    def command(**options: Any) -> NoReturn:
        try:
            status = _status(job, **options)
        except KeyboardInterrupt:  # while torch is imported, too
            Output().warn("capsnet-loma: interrupted")
            status = 130
        sys.exit(status)

    return command


def _status(job: Callable[..., int], **options: Any) -> int:
    missing = [of for name, of in PACKAGES.items() if importlib.util.find_spec(name) is None]
    if missing:
        Output().warn(
            f"capsnet-loma: not installed: {', '.join(missing)}; install it by "
            "pip install 'loma-torch[capsnet]', in a checkout by "
            "pip install -c constraints.txt -e '.[capsnet]'"
        )
        return 1
    from capsnet_loma.data import DataError
    from capsnet_loma.evaluation import EvaluationError
    from capsnet_loma.profiling.processes import ProfileError
    from capsnet_loma.training import TrainingError
    from capsnet_loma.training.checkpoint import CheckpointError
    from loma.errors import ToolchainError, UserError

    expected = (
        UserError, ToolchainError, ProfileError, DataError, EvaluationError, TrainingError,
        CheckpointError, OSError,
    )  # fmt: skip
    try:
        return job(**options)
    except expected as error:
        Output().warn(f"capsnet-loma: {error}")
        return 1
