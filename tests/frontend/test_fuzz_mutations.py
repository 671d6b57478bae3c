"""Programs that are nearly right get a report with a line, or go through every stage.

The stages end with C++ and C text: nothing is compiled. ``pytest --fuzz-examples N
tests/frontend/test_fuzz_mutations.py`` tries N programs of each layer, other ones each time.
"""

from __future__ import annotations

import random
import time

import pytest
from corpus import scalar_programs, tensor_programs
from fuzz_mutations import mutated

from loma import pipeline
from loma.core.printer import print_module
from loma.errors import UserError
from loma.frontend import parse


def _through_all_stages(text: str) -> None:
    module = pipeline.parsed(text, "program.loma")
    assert parse(print_module(module)) == module
    adjoint = pipeline.adjoint(module)
    stage = pipeline.program(text, "program.loma", every=True)
    pipeline.function_records(stage)
    if stage.scalar_functions:
        pipeline.generated_scalars(stage)
    if not stage.tensor_functions:
        pipeline.generated_c(adjoint)
        return
    pipeline.generated(stage)
    pipeline.stage_text(text, "kernels", path="program.loma")
    for pair in stage.pairs[:1]:
        pipeline.generated(pipeline.derived(stage, pair.backward))


@pytest.mark.parametrize(("layer", "count"), [("tensors", 60), ("scalars", 250)])
def test_what_is_nearly_right(layer: str, count: int, request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    count //= 1 if request.config.getoption("--full") else 3
    rng = random.Random(time.time_ns() if wanted else 0)
    # the routing and its derivatives take seconds each
    texts = [text for _, text in (tensor_programs() if layer == "tensors" else scalar_programs())
             if wanted or len(text) < 1500]  # fmt: skip
    accepted = 0
    for _ in range(wanted or count):
        text = mutated(rng.choice(texts), rng)
        try:
            _through_all_stages(text)
            accepted += 1
        except UserError as error:
            assert error.lineno, text  # noqa: PT017
            assert str(error).startswith("program.loma:"), text  # noqa: PT017
        except Exception as error:
            pytest.fail(f"{error!r} for\n{text}")
    assert accepted > (wanted or count) / 20  # so that the stages have something to do
