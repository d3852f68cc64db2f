"""Tensor and sequence parallelism against one process."""

from typing import Any

import pytest
import torch
from torch import distributed

from tests.models.combinations import SET_TEXTS, batch_for, described
from tests.parallel.equality import StepGradients, assert_equal, backward, build_double, gradients_of, single_process
from tests.parallel.ranks import run_on_ranks
from transom.config.parallel import ParallelConfig
from transom.parallel.collectives import World
from transom.parallel.gradients import reduce_gradients
from transom.parallel.mesh import build_mesh
from transom.parallel.tensor import apply_tensor_parallel

CPU = torch.device("cpu")


def fits(fields: dict[str, Any]) -> bool:
    """Tell whether tensor parallelism supports a combination."""
    return fields.get("norm") != "batchnorm" and fields.get("depth", "full") == "full"


def prepared(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove the capacity of experts, for which the tokens of all rows compete."""
    network = fields.get("feed_forward", {})
    return fields | {"feed_forward": network | {"capacity_factor": "none"}} if network.get("kind") == "moe" else fields


def _step(rank: int, layout: ParallelConfig, all_fields: list[dict[str, Any]]) -> list[StepGradients]:
    mesh = build_mesh(layout, CPU)
    results = []
    for fields in all_fields:
        config = described(fields)
        model = build_double(config)
        apply_tensor_parallel(model, mesh)
        n = layout.tensor
        loss = torch.tensor(backward(model, batch_for(config), (rank, n), world=World(rank, n)), dtype=torch.float64)
        distributed.all_reduce(loss)
        reduce_gradients(model, mesh)
        results.append(StepGradients(float(loss), gradients_of(model)))
    return results if rank == 0 else []


@pytest.mark.parametrize("n", [2, 3])
def test_combinations(n: int) -> None:
    all_fields = [prepared(fields) for fields in SET_TEXTS if fits(fields)]
    results = run_on_ranks(n, _step, ParallelConfig(tensor=n), all_fields)[0]
    for fields, found in zip(all_fields, results, strict=True):
        config = described(fields)
        assert_equal(found, single_process(config, batch_for(config)), fields)
