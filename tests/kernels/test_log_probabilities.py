"""Native log probabilities and their largest ones equal PyTorch's, with infinities and NaN, for any number of rows and threads."""

import math
from collections.abc import Iterator

import pytest
import torch

from transom.decoding.search.loop import TOPK_BLOCK_SIZE, largest, log_probabilities, log_softmax_
from transom.kernels.native_library import load_elementwise_library
from transom.layers.dispatch import REFERENCES, selected_path

pytestmark = pytest.mark.kernels

needs_library = pytest.mark.skipif(load_elementwise_library().library is None, reason=load_elementwise_library().reason)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def logits_of(rows: int, vocab: int, scale: float = 5.0) -> torch.Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows + vocab))


@needs_library
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 15), (2, 257), (9, 4000), (2, 60_001)])
@pytest.mark.parametrize("scale", [0.1, 5.0, 300.0])
def test_log_softmax_is_as_exact_as_pytorchs(rows: int, vocab: int, scale: float) -> None:
    logits = logits_of(rows, vocab, scale)
    exact = logits.double().log_softmax(-1)
    assert selected_path("log_softmax_", logits) == "C++"
    with torch.inference_mode():
        found = log_probabilities(logits.clone(), in_place=True)
    error, of_pytorch = ((each.double() - exact).abs().max() for each in (found, logits.log_softmax(-1)))
    assert error <= 2 * of_pytorch + 1e-6
    assert torch.allclose(found.double().exp().sum(-1), torch.ones(rows, dtype=torch.float64), atol=1e-5)


@needs_library
def test_log_softmax_of_infinities_and_nan_is_pytorchs() -> None:
    rows = logits_of(4, 100)
    rows[0, :99] = -math.inf
    rows[1] = -math.inf
    rows[2, 7] = math.inf
    rows[3, 50] = math.nan
    assert torch.equal(log_softmax_(rows.clone()).isnan(), rows.log_softmax(-1).isnan())
    assert log_softmax_(rows.clone())[0].tolist() == [-math.inf] * 99 + [0.0]


@needs_library
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 15), (2, 257), (9, 4000), (2, 60_001)])
def test_the_largest_value_is_pytorchs_and_the_first_of_equal_ones(rows: int, vocab: int) -> None:
    for values in (logits_of(rows, vocab), logits_of(rows, vocab).round(), torch.full((rows, vocab), -math.inf)):
        assert selected_path("largest", values) == "C++"
        best, indices = largest(values)
        assert torch.equal(best, values.amax(1))
        assert indices.tolist() == [row.index(max(row)) for row in values.tolist()]


@pytest.mark.parametrize("implementation", [pytest.param(largest, marks=needs_library), REFERENCES["largest"]], ids=["C++", "reference"])
def test_nan_is_larger_than_any_number(implementation: object) -> None:
    assert callable(implementation)
    values = logits_of(3, 4 * TOPK_BLOCK_SIZE)
    values[0, 300] = math.nan
    values[1, 5] = math.inf
    best, indices = implementation(values)
    assert math.isnan(best[0])
    assert indices[:2].tolist() == [300, 5]


@pytest.mark.parametrize("rows", [torch.zeros(2, 8, dtype=torch.float64), torch.zeros(8, 2).T, torch.zeros(2, 8, requires_grad=True)])
def test_other_rows_are_left_to_pytorch(rows: torch.Tensor) -> None:
    assert selected_path("log_softmax_", rows) == selected_path("largest", rows) == "reference"
    assert torch.equal(log_softmax_(rows.detach().clone()), rows.log_softmax(-1))
