"""The mean of several checkpoints' weights, against the plain mean in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.checkpoints.averaging import average_tensors


@settings(max_examples=20)
@given(st.integers(1, 7), st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_the_mean_is_that_of_float64(n: int, seed: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(seed)
    sets = [{"w": torch.randn(3, 5, generator=draw).to(dtype), "b": 100 + torch.randn(2, generator=draw).to(dtype)} for _ in range(n)]
    found = average_tensors(iter(sets))
    for name, x in found.items():
        exact = torch.from_numpy(np.mean([each[name].double().numpy() for each in sets], axis=0))
        assert x.dtype == dtype
        accuracy = torch.finfo(dtype).eps if dtype == torch.bfloat16 else n * torch.finfo(dtype).eps
        assert x.double().sub(exact).abs().max() <= accuracy * exact.abs().max()


def test_sums_are_in_float32() -> None:
    sets = [{"w": torch.full((1,), value, dtype=torch.bfloat16)} for value in (256.0, 1.0, 1.0, 1.0, 1.0)]
    assert average_tensors(sets)["w"].item() == torch.tensor(52.0, dtype=torch.bfloat16).item(), "256 + 1 is 256 in bfloat16"


def test_nothing_that_is_averaged_is_changed() -> None:
    sets = [{"w": torch.ones(2)}, {"w": torch.zeros(2)}]
    average_tensors(sets)["w"].add_(5)
    assert sets[0]["w"].tolist() == [1, 1] and sets[1]["w"].tolist() == [0, 0]


def test_integers_come_from_the_last() -> None:
    assert average_tensors([{"n": torch.tensor([3])}, {"n": torch.tensor([8])}])["n"].tolist() == [8]


def test_sets_with_other_names_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="found a difference at"):
        average_tensors([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}])
