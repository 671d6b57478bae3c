"""What one writes from a paper compiles as it stands: values, first and second derivatives."""

from __future__ import annotations

import pytest
import torch
from layer_cases import LAYERS
from oracle import Program, check_case
from paper_cases import PAPERS
from sampled import one_in

BY_NAME = {case.name: case for case in (*PAPERS, *LAYERS)}


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    names = list(BY_NAME)[:: 1 if pytestconfig.getoption("--full") else 3]
    return Program([BY_NAME[name].text for name in names], first=())


@pytest.mark.parametrize("name", one_in(3, BY_NAME))
def test_interpreted(program: Program, name: str) -> None:
    if name == "grid_sample" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("this PyTorch has no second derivative of grid_sample")
    check_case(program, BY_NAME[name], libtorch=False)


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_compiled(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name])


def test_the_reference_of_ctc_is_that_of_pytorch() -> None:
    logits, target = BY_NAME["ctc"].arguments()
    logp = torch.log_softmax(logits, 1)[:, None]
    steps, labels = torch.tensor([len(logits)]), torch.tensor([len(target)])
    known = torch.nn.functional.ctc_loss(logp, target[None], steps, labels, reduction="sum")
    torch.testing.assert_close(BY_NAME["ctc"].reference(logits, target), known)
