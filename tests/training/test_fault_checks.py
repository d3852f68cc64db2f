"""A bit that flips on one rank, in weights, optimizer state or gradients, ends the run and names the tensor, the step and the rank."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiers import tiers
from tests.training.test_keyed_dropout import SEQ2SEQ, batch, built
from transom.config.parallel import ParallelConfig
from transom.config.training import AdamConfig, TrainingConfig
from transom.data.batch_bytes import batches_from_bytes, batches_to_bytes
from transom.parallel.axes.sharding import dtensor_axes, local
from transom.parallel.digests import CHUNK, ReplicaError, digest
from transom.parallel.layouts import apply_layout
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import World
from transom.parallel.processes.local_ranks import run_on_ranks
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.train_step import TrainStep

TRAINING = TrainingConfig(optimizer=AdamConfig(), learning_rate=0.01, digest_every=2)
KEPT = "the last checkpoint is kept: continue with --resume on other hardware"


def flip(x: Tensor, bit: int = 0) -> None:
    """Flip a bit of the middle number of a tensor."""
    words = local(x).view(-1).view(torch.int64)
    words[len(words) // 2] ^= 1 << bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool])
@pytest.mark.parametrize("n", [1, 7, 8, 64, 101])
def test_every_bit_and_the_order_change_the_digest(dtype: torch.dtype, n: int) -> None:
    x = torch.arange(n).remainder(6).to(dtype)
    whole = digest(x)
    data = x.view(torch.uint8)
    for place in {0, len(data) // 2, len(data) - 1}:
        for bit in range(8):
            data[place] ^= 1 << bit
            assert digest(x) != whole, (place, bit)
            data[place] ^= 1 << bit
    assert digest(x) == whole
    assert n < 10 or digest(x.flip(0)) != whole
    assert digest(torch.cat([x[:1], x])[1:]) == whole, "wherever the tensor begins in its memory"
    assert digest(x[:, None].expand(n, 3)) == digest(x[:, None].repeat(1, 3)), "however it lies in memory"


def test_the_digest_of_many_words_depends_on_the_place_of_each() -> None:
    x = torch.zeros(2 * CHUNK + 5)
    seen = set()
    for place in range(0, len(x), CHUNK // 4):
        x[place] = 1.0
        seen.add(int(digest(x)))
        x[place] = 0.0
    assert len(seen) == len(range(0, len(x), CHUNK // 4)) and digest(x) == 0 == digest(x[:0])


@pytest.mark.parametrize("kind", ["seq2seq", "decoder", "encoder", "text-classifier", "vision-transformer"])
def test_batches_come_back_from_bytes(kind: str) -> None:
    sent = [batch(kind, rows, 9) for rows in ([0, 1, 2], [3])]
    received = batches_from_bytes(batches_to_bytes(sent))
    assert batches_to_bytes(received) == batches_to_bytes(sent)
    assert [type(each) for each in received] == [type(each) for each in sent]
    assert [each.sample_ids for each in received] == [(0, 1, 2), (3,)]
    assert torch.equal(received[0].labels, sent[0].labels)


def steps(rank: int, layout: dict[str, int], fault: str, wrong: int, fields: dict[str, Any]) -> str:
    """Take steps in which ``fault`` happens on the rank ``wrong`` once; return the message of the error that ends them."""
    axes = ParallelConfig(**layout)
    ranks = Ranks(World(rank, axes.n_processes), axes, torch.device("cpu"))
    model = built(fields)
    pipeline = apply_layout(model, ranks, torch.float32)
    mine = [batch(fields["kind"], list(range(axes.batch_part(rank), 6, axes.n_batch_parts)), 9)]
    optimizer = build_optimizer(model, TRAINING.optimizer)
    split_groups_by_mesh(optimizer)
    step = TrainStep(model, optimizer, TRAINING, torch.float32, CrossEntropy(0.1), ranks, filler=lambda: mine[0], pipeline=pipeline)
    checks, victim = step.fault_checks, dict(model.named_parameters())
    matrices = [name for name, p in victim.items() if p.dim() == 2]  # a bias of keys has no gradient but rounding errors
    name = min(name for name in matrices if local(victim[name]).numel() > 2 and not dtensor_axes(victim[name]) & {"tensor"})
    if pipeline is not None:
        (name,) = pipeline.shared
    happened = []

    def after(module: object, method: str, n_steps: int) -> None:
        """Flip a bit of a gradient after the first call of a method in the step after ``n_steps`` steps."""
        original = getattr(module, method)

        def faulty(*args: Any) -> Any:
            result = original(*args)
            if step.n_steps == n_steps and not happened and rank == wrong:
                happened.append(n_steps)
                gradient = victim[name].grad
                assert gradient is not None
                flip(gradient, 3)
            return result

        setattr(module, method, faulty)

    if fault == "reduced":
        after(step.gradients, "all_reduce", 2)
    elif fault == "local":
        after(step, "_sum_gradients", 10)
    elif fault == "recomputed":
        after(step, "_forward_backward", 10)
    try:
        for number in range(13):
            if number == 3 and rank == wrong and fault in ("weight", "state"):
                if fault == "weight":
                    flip(victim[name])
                else:  # two updates before the digest may round the last bit away, and much more would show in the weights too
                    flip(optimizer.state[victim[name]]["exp_avg"], 1)
            if number == 4 and fault == "saved":
                if rank == wrong:
                    flip(victim[name])
                checks.compare(number)
            assert not step.step(mine, 0.01).skipped
    except ReplicaError as error:
        return str(error)
    return ""


SMALL = SEQ2SEQ | {"n_encoder_layers": 1, "n_decoder_layers": 1, "max_seq_len": 32}


CASES: list[tuple[dict[str, int], str, int, str]] = [
    ({"data": 3}, "none", 0, ""),
    ({"data": 3}, "weight", 1, "step 5: expected weight [a-z].* on ranks 0, 1 and 2, found there are other bits on rank 1: "),
    ({"data": 2}, "state", 1, "step 5: expected optimizer state .*exp_avg to be .* on ranks 0 and 1, .*one of them .* on rank 0 or 1: "),
    ({"data": 2}, "reduced", 1, "step 3: expected gradient of .* on ranks 0 and 1, found there are other bits on rank 1: "),
    ({"data": 2}, "saved", 0, "step 4: expected weight .* on rank 0 or 1: "),
    ({"data": 2}, "local", 0, "step 11: expected loss and gradient of rank 0's samples .* ranks 0 and 1, .*other bits on rank 0: "),
    ({"data": 2}, "recomputed", 1, "step 11: expected loss and gradient of rank 0's .* ranks 0 and 1, .*other bits on rank 1: "),
    ({"data": 3}, "local", 0, "step 11: expected loss and gradient of rank 0's .* ranks 0 and 1, .* on rank 0: "),
    ({"data": 3}, "recomputed", 1, "step 11: expected loss and gradient of rank 0's .* ranks 0 and 1, .* on rank 1: "),
    ({"data": 2, "shard": 2}, "state", 3, "step 5: expected optimizer state .*exp_avg .* on ranks 1 and 3, .* on rank 1 or 3: "),
    ({"tensor": 2}, "weight", 0, "step 5: expected weight .* on rank 0 or 1: "),
    ({"pipeline": 2}, "none", 0, ""),
    ({"data": 2, "tensor": 2, "pipeline": 2}, "none", 0, ""),
    ({"pipeline": 2}, "weight", 1, "step 5: expected copies of .*embedding.* on ranks 0 and 1, .*one of them .* on rank 0 or 1: "),
    ({"pipeline": 2}, "state", 0, "step 5: expected copies of .*embedding.* on rank 0 or 1: "),
    ({"pipeline": 2}, "reduced", 1, "step 3: expected copies of .*embedding.* on ranks 0 and 1, found there are other bits on rank 1: "),
    ({"data": 2, "pipeline": 2}, "saved", 3, "step 4: expected copies of .*embedding.* on ranks 1 and 3, .* on rank 1 or 3: "),
    ({"data": 3, "tensor": 2}, "weight", 4, "step 5: expected weight .* on ranks 0, 1, 2, 3, 4 and 5, .* on rank 4: "),
]
"""Layout, kind of fault, rank on which it happens, and the message."""


@pytest.mark.parametrize("case", tiers(CASES, long=[*CASES[:7], *CASES[9:16]]), ids=lambda case: f"{case[1]}-{case[0]}")
def test_a_flipped_bit_is_noticed(case: tuple[dict[str, int], str, int, str]) -> None:
    layout, fault, wrong, message = case
    found = run_on_ranks(ParallelConfig(**layout).n_processes, steps, layout, fault, wrong, SMALL)
    assert len({*found}) == 1, "all ranks end with the same error"
    assert re.search(message, found[0]) and "\n" not in found[0], found[0]
    assert found[0].endswith(KEPT) if message else not found[0]
