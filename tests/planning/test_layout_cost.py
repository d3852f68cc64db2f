"""Parameters, collectives, memory and times of a layout agree with formulas written out by hand."""

import math
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.config.training import EncoderTrainingConfig
from transom.planning.cluster import Cluster, Link, RankGroup, collective_seconds, rank_group, sent_bytes
from transom.planning.communication import Collective, MicroBatches, NumberBytes, list_collectives
from transom.planning.layout import parse_layout
from transom.planning.parameters import count_parameters
from transom.planning.pipeline_stages import stage_blocks
from transom.planning.plan import flops_per_token
from transom.planning.rank_memory import ActivationBytes, count_rank_bytes, rank_activations
from transom.planning.schedule import one_forward_one_backward
from transom.planning.stages import Stage, count_stage_parameters, divide_stages
from transom.planning.step_time import StageSeconds, StepSeconds, bubble_fraction, predict_stage_seconds, stage_flops
from transom.planning.training_bytes import count_training_bytes

D, D_FF, LAYERS, HEADS, KV, VOCAB, LENGTH = 32, 48, 6, 8, 4, 100, 16
SHAPE: dict[str, Any] = {"d_model": D, "n_heads": HEADS, "n_kv_heads": KV, "d_ff": D_FF, "max_seq_len": LENGTH, "norm": "rmsnorm"}
DECODER = parse_model_config({"kind": "decoder", **SHAPE, "n_layers": LAYERS, "vocab_size": VOCAB, "attention": {"qkv_bias": False}})
EXPERTS = parse_model_config({**DECODER.model_dump(exclude_unset=True), "feed_forward": {"kind": "moe", "n_experts": 4, "top_k": 2}})
TRANSLATOR = parse_model_config(
    {"kind": "seq2seq", **SHAPE, "n_encoder_layers": 3, "n_decoder_layers": 3, "source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
)
MICRO = MicroBatches(n=4, rows=2, source=0, target=LENGTH)
TOKENS = 2 * LENGTH
KV_GRADIENTS = "gradients of keys and values of {}"
HALF = NumberBytes(activation=2, weight=4, gradient=4)
MATRICES = 2 * D * D + 2 * D * D * KV // HEADS + 3 * D * D_FF + D
"""Parameters of a block: query, output, key, value, three matrices of SwiGLU and the bias of the output map."""


def found(config: Any, layout: ParallelConfig, stage: int = 0, micro: MicroBatches = MICRO) -> dict[tuple[str, str, str], Collective]:
    stages = divide_stages(config, layout.pipeline)
    parameters = count_stage_parameters(config, layout, stages[stage])
    collectives = list_collectives(config, layout, stages[stage], parameters, micro, HALF)
    return {(each.kind, each.axis, each.what): each for each in collectives}


def test_parameters_of_a_rank_by_hand() -> None:
    whole = count_stage_parameters(DECODER, ParallelConfig(), divide_stages(DECODER, 1)[0])
    norms = 2 * D
    assert (whole.block, whole.blocks, whole.ends) == (MATRICES + norms, LAYERS * (MATRICES + norms), VOCAB * D + D)
    assert whole.total == count_parameters(DECODER).total and whole.tied == 0
    quarter = count_stage_parameters(DECODER, parse_layout("tensor=4"), divide_stages(DECODER, 1)[0])
    assert quarter.block == (MATRICES - D) // 4 + D + norms
    assert quarter.replicated["tensor"] == LAYERS * (D + norms) + quarter.ends
    assert quarter.replicated["data"] == quarter.total


def test_stages_hold_all_blocks_and_the_shared_embedding_twice() -> None:
    layout = parse_layout("pipeline=4")
    stages = divide_stages(DECODER, 4)
    assert [stage.n_blocks for stage in stages] == [len(blocks) for blocks in stage_blocks(DECODER, 4)]
    parts = [count_stage_parameters(DECODER, layout, stage) for stage in stages]
    assert sum(part.total for part in parts) == count_parameters(DECODER).total + VOCAB * D
    assert [part.ends for part in parts] == [VOCAB * D, 0, 0, VOCAB * D + D]
    assert [part.tied for part in parts] == [VOCAB * D, 0, 0, VOCAB * D]
    untied = DECODER.model_copy(update={"tie_embeddings": False})
    assert sum(count_stage_parameters(untied, layout, stage).total for stage in stages) == count_parameters(untied).total


def test_stages_of_a_translator() -> None:
    stages = divide_stages(TRANSLATOR, 4)
    assert [stage.blocks for stage in stages] == [{"encoder": 2}, {"encoder": 1, "decoder": 1}, {"decoder": 1}, {"decoder": 1}]
    assert [stage.finished for stage in stages] == [(), ("encoder",), (), ("decoder",)]
    parts = [count_stage_parameters(TRANSLATOR, parse_layout("pipeline=4"), stage) for stage in stages]
    assert sum(part.total for part in parts) == count_parameters(TRANSLATOR).total + 2 * VOCAB * D, "one table in three stages"


def test_experts_are_divided_whole() -> None:
    stage = divide_stages(EXPERTS, 1)[0]
    whole, half = (count_stage_parameters(EXPERTS, parse_layout(mesh), stage) for mesh in ("data=1", "expert=2"))
    experts = LAYERS * 4 * 3 * D * D_FF
    assert whole.total - half.total == experts // 2
    assert half.replicated["expert"] == whole.total - experts and half.replicated["data"] == half.total
    both = count_stage_parameters(EXPERTS, parse_layout("expert=2,tensor=2"), stage)
    assert both.replicated["tensor"] > experts // 2, "tensor parallelism does not divide the experts as well"


def test_sharding_gathers_twice_and_reduces_once_per_block() -> None:
    """Rajbhandari et al. 2020, section 7.2.2: 3 times the parameters per micro-batch, of which the ends are gathered once."""
    layout, parameters = parse_layout("shard=4,data=2"), count_parameters(DECODER).total
    each = found(DECODER, layout)
    block, ends = MATRICES + 2 * D, VOCAB * D + D
    gathers, sums = each["all-gather", "shard", "weights of a block"], each["reduce-scatter", "shard", "gradients of a block"]
    assert (gathers.count, gathers.n_bytes, sums.count, sums.n_bytes) == (2 * LAYERS, 4 * block, LAYERS, 4 * block)
    assert each["all-gather", "shard", "weights of embeddings and output"].n_bytes == 4 * ends
    per_pass = sum(c.count * c.n_bytes for c in each.values() if c.axis == "shard")
    assert per_pass == 4 * (3 * parameters - ends)
    assert sum(c.sent(layout, MICRO.n) for c in each.values() if c.axis == "shard") == MICRO.n * per_pass * 3 / 4
    between = each["all-reduce", "data", "gradients"]
    assert between.per_step and between.n_bytes == 4 * parameters / 4 and between.sent(layout, MICRO.n) == 2 * parameters / 2


def test_tensor_parallelism_sends_the_hidden_states_of_each_half_block() -> None:
    """Korthikanti et al. 2022, section 4.2.2: a gather and a reduction per half of a block and pass; at the end one more of each."""
    each = found(DECODER, parse_layout("tensor=4,context=2"))
    for kind in ("all-gather", "reduce-scatter"):
        c = each[kind, "tensor", "hidden states of the decoder"]
        assert (c.count, c.n_bytes) == (4 * LAYERS + 1, 2 * TOKENS * D / 2)
    halves = found(TRANSLATOR, parse_layout("tensor=2"), micro=MICRO._replace(source=10))
    assert halves["all-gather", "tensor", "hidden states of the encoder"].count == 2 * 2 * 3 + 1
    assert halves["all-gather", "tensor", "hidden states of the decoder"].count == 2 * 3 * 3 + 1
    assert halves["all-gather", "tensor", "hidden states of the encoder"].n_bytes == 2 * 2 * 10 * D


def test_the_ring_passes_keys_values_and_their_gradients() -> None:
    """Liu et al. 2023: forward, and backward with float32 gradients, which go home; with grouped heads, half as wide as the model each."""
    each, numbers = found(DECODER, parse_layout("context=4")), (TOKENS / 4) * 2 * D * KV / HEADS
    sent, gradients = each["send", "context", "keys and values of the decoder"], each["send", "context", KV_GRADIENTS.format("the decoder")]
    assert (sent.count, sent.n_bytes) == (2 * 3 * LAYERS, 2 * numbers) and (gradients.count, gradients.n_bytes) == (4 * LAYERS, 4 * numbers)
    exchanged = each["all-to-all", "context", "tokens in the order of the ring"]
    assert exchanged.count * exchanged.n_bytes == pytest.approx(2 * LAYERS * 2 * (TOKENS / 4) * (2 * D + 2 * D * KV / HEADS))
    translator = found(TRANSLATOR, parse_layout("context=2"), micro=MICRO._replace(source=10))
    cross = translator["send", "context", KV_GRADIENTS.format("cross-attention")]
    assert (cross.count, cross.n_bytes) == (2 * 3, 4 * (2 * 10 / 2) * 2 * D * KV / HEADS)


def test_tokens_go_to_their_experts_and_back() -> None:
    """Lepikhin et al. 2020: two all-to-alls per pass, of every token once per selected expert."""
    each = found(EXPERTS, parse_layout("expert=2,tensor=2"))
    c = each["all-to-all", "expert", "tokens of the decoder"]
    assert (c.count, c.n_bytes) == (4 * LAYERS, 2 * 2 * (TOKENS / 2) * D)
    assert c.sent(parse_layout("expert=2,tensor=2"), 1) == 4 * LAYERS * c.n_bytes / 2
    assert each["all-gather", "tensor", "hidden states of the decoder"].count == 2 * LAYERS + 1, "for attention only"


def test_stages_send_hidden_states_and_gradients() -> None:
    layout = parse_layout("pipeline=3,tensor=2")
    sends = [found(DECODER, layout, stage)["send", "pipeline", "hidden states, gradients"] for stage in range(3)]
    assert [c.count for c in sends] == [1, 2, 1] and {c.n_bytes for c in sends} == {2 * TOKENS * D / 2}
    tied = [("send", "pipeline", "a shared embedding") in found(DECODER, layout, stage) for stage in range(3)]
    assert tied == [True, False, True]
    micro = MICRO._replace(source=10)
    encoder, decoder = (found(TRANSLATOR, parse_layout("pipeline=6"), stage, micro) for stage in (1, 4))
    key = ("send", "pipeline", "hidden states, gradients")
    assert (encoder[key].n_bytes, decoder[key].n_bytes) == (2 * 2 * 10 * D, 2 * (TOKENS + 2 * 10) * D), "with the encoder's output"


def test_the_last_stage_gathers_the_targets_of_a_contrastive_loss() -> None:
    """The targets of all parts in float32: over two axes, one after the other, as many bytes as at once."""
    embedder = parse_model_config({"kind": "text-embedder", **SHAPE, "n_layers": LAYERS, "vocab_size": VOCAB})
    layout, micro = parse_layout("data=4,shard=2,pipeline=2"), MICRO._replace(source=LENGTH)
    first, last = (found(embedder, layout, stage, micro) for stage in range(2))
    for kind, what in (("all-gather", "targets of a contrastive loss"), ("reduce-scatter", "gradients of these targets")):
        shard, data = (last[kind, axis, what] for axis in ("shard", "data"))
        assert (shard.count, shard.n_bytes, data.count, data.n_bytes) == (1, 4 * 2 * 2 * D, 1, 4 * 8 * 2 * D)
        assert shard.sent(layout, 3) + data.sent(layout, 3) == 3 * 7 * 4 * 2 * D
        assert (kind, "data", what) not in first
    assert not any("targets" in what for *_, what in found(embedder, parse_layout("tensor=2"), micro=micro))


def test_one_process_sends_nothing() -> None:
    assert found(DECODER, ParallelConfig()) == {}


def test_a_rank_of_one_process_holds_what_the_plan_says() -> None:
    stage, layout, training = divide_stages(DECODER, 1)[0], ParallelConfig(), EncoderTrainingConfig()
    parameters = count_stage_parameters(DECODER, layout, stage)
    mine = count_rank_bytes(DECODER, training, layout, stage, parameters, 1000)
    assert mine.total == count_training_bytes(DECODER, training, 1000).total
    quarters = parse_layout("shard=4")
    parameters = count_stage_parameters(DECODER, quarters, stage)
    sharded = count_rank_bytes(DECODER, training, quarters, stage, parameters, 0)
    full = count_training_bytes(DECODER, training, 0, 4, "full")
    assert (sharded.weights, sharded.gradients, sharded.optimizer) == (full.weights, full.gradients, full.optimizer)
    assert sharded.gathered == 4 * (3 * parameters.block + 2 * parameters.ends)


def test_activations_by_hand() -> None:
    """Korthikanti et al. 2022, eq. 4, and the inputs that each half of a block gathers; the first stage keeps most micro-batches."""
    saved = ActivationBytes(blocks={"decoder": 800}, block_copies={"decoder": 40}, ends=80, end_copies=7, buffers=16, loss_buffers=5)
    layout, stages = parse_layout("pipeline=2,tensor=2,context=2"), divide_stages(DECODER, 2)
    gathered = 2 * 2 * TOKENS * D / 2 / 2
    per_micro_batch = 3 * (2 * 800 / 4 + 40 / 2 + gathered)
    first, last = (rank_activations(DECODER, layout, stage, MICRO, saved, 2) for stage in stages)
    assert first == 2 * per_micro_batch + 2 * 16 / 4
    assert last == per_micro_batch + 2 * 80 / 4 + 7 + 2 * 16 / 4 + 5


CLUSTER = Cluster("test", 1e12, 2**30, 8, Link(100e9, 1e-6), Link(10e9, 5e-6), 0.5, "by hand")


@pytest.mark.parametrize(
    ("mesh", "axis", "group"),
    [
        ("tensor=4", "tensor", RankGroup(4, 4)),
        ("tensor=16", "tensor", RankGroup(16, 8)),
        ("data=4,tensor=4", "data", RankGroup(4, 2)),
        ("shard=4,tensor=8", "shard", RankGroup(4, 1)),
        ("pipeline=4,data=4", "pipeline", RankGroup(4, 2)),
        ("pipeline=2,data=64", "pipeline", RankGroup(2, 1)),
    ],
)
def test_neighbors_along_an_axis(mesh: str, axis: str, group: RankGroup) -> None:
    assert rank_group(parse_layout(mesh), axis, 8) == group


def test_times_of_collectives_by_hand() -> None:
    """Thakur, Rabenseifner and Gropp 2005: latency per hop, (n - 1) / n of the bytes; ranks of a machine share its links to others."""
    inside, across, alone = RankGroup(4, 4), RankGroup(16, 8), RankGroup(4, 1)
    assert collective_seconds("all-gather", 8e9, inside, CLUSTER) == pytest.approx(3e-6 + 8e9 * 3 / 4 / 100e9)
    assert collective_seconds("all-reduce", 8e9, inside, CLUSTER) == pytest.approx(
        2 * collective_seconds("all-gather", 8e9, inside, CLUSTER)
    )
    assert collective_seconds("reduce-scatter", 8e9, across, CLUSTER) == pytest.approx(7e-6 + 5e-6 + 8e9 * 15 / 16 / 80e9)
    assert collective_seconds("all-to-all", 8e9, alone, CLUSTER) == pytest.approx(3 * 5e-6 + 8e9 * 3 / 4 / 10e9)
    assert collective_seconds("send", 8e9, alone, CLUSTER) == pytest.approx(5e-6 + 0.8)
    assert collective_seconds("send", 8e9, inside, CLUSTER) == pytest.approx(1e-6 + 0.08)
    assert collective_seconds("all-reduce", 8e9, RankGroup(1, 1), CLUSTER) == 0 and sent_bytes("all-reduce", 6, 3) == 8


def test_collectives_that_reach_a_part_of_the_bandwidth() -> None:
    slower, group = replace(CLUSTER, efficiency={"all-gather": 0.5}), RankGroup(4, 4)
    assert collective_seconds("all-gather", 8e9, group, slower) == pytest.approx(3e-6 + 2 * 8e9 * 3 / 4 / 100e9)
    assert collective_seconds("send", 8e9, group, slower) == collective_seconds("send", 8e9, group, CLUSTER)


def test_times_of_a_stage_by_hand() -> None:
    layout = parse_layout("shard=2,tensor=2")
    collectives = [
        Collective("all-gather", "shard", "weights", 2, 1e9, can_overlap=True),
        Collective("all-gather", "tensor", "hidden states", 3, 1e9),
        Collective("all-reduce", "tensor", "gradients", 1, 1e9, per_step=True),
    ]
    one = 1e-6 + 0.5e9 / 100e9
    found = predict_stage_seconds(1e9, collectives, layout, CLUSTER)
    assert astuple(found)[:4] == pytest.approx((3e9 / 0.5e12, 3 * one, 2 * one, 2 * one))
    assert found.micro_batch == max(found.compute, found.sharding) + found.waiting
    blocking = predict_stage_seconds(1e9, collectives, layout, replace(CLUSTER, overlaps=False))
    assert blocking.micro_batch == found.compute + found.sharding + found.waiting
    assert predict_stage_seconds(1e9, [], layout, CLUSTER, recompute=True).compute == pytest.approx(4e9 / 0.5e12)


@pytest.mark.parametrize("config", [DECODER, EXPERTS, TRANSLATOR])
def test_stages_compute_all_operations_once(config: Any) -> None:
    layout = parse_layout("pipeline=3,tensor=2,context=2")
    parts = flops_per_token(config, 0 if config is not TRANSLATOR else 8, 8).parts
    total = sum(stage_flops(config, parts, layout, stage) for stage in divide_stages(config, 3))
    assert total == pytest.approx(sum(parts.values()) / 4)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 20), st.lists(st.floats(0.5, 4.0), min_size=8, max_size=8))
def test_the_timeline_is_a_schedule(n_stages: int, n: int, seconds: list[float]) -> None:
    """No stage does two things at once, every pass has what it needs, and 1F1B keeps at most p - s micro-batches."""
    cells = one_forward_one_backward(seconds[:n_stages], n)
    ends = {(cell.kind, cell.stage, cell.micro_batch): cell.end for cell in cells}
    assert len(ends) == len(cells) == 2 * n_stages * n
    for stage in range(n_stages):
        own = sorted((cell for cell in cells if cell.stage == stage), key=lambda cell: cell.start)
        assert all(before.end <= after.start + 1e-9 for before, after in pairwise(own))
        in_flight = [sum(1 if c.kind == "forward" else -1 for c in own[: i + 1]) for i in range(len(own))]
        assert max(in_flight) == Stage(stage, n_stages, {}, ()).in_flight(n) and in_flight[-1] == 0
    for cell in cells:
        if cell.kind == "forward" and cell.stage:
            assert ends["forward", cell.stage - 1, cell.micro_batch] <= cell.start + 1e-9
        if cell.kind == "backward":
            needed = ("backward", cell.stage + 1) if cell.stage < n_stages - 1 else ("forward", cell.stage)
            assert ends[*needed, cell.micro_batch] <= cell.start + 1e-9
    slowest = max(seconds[:n_stages])
    assert n * slowest <= max(ends.values()) + 1e-9 <= (n + n_stages - 1) * slowest + 1e-6


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (4, 8), (8, 8), (3, 20)])
def test_the_bubble_is_that_of_the_article(p: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2.1: p - 1 forward and p - 1 backward passes, beside m of each."""
    step = StepSeconds((StageSeconds(2.0, 1.0, 2.5, 0.5),) * p, m)
    assert step.slowest.micro_batch == 3.5
    assert step.passes == pytest.approx((m + p - 1) * 3.5) and step.total == pytest.approx(step.passes + 0.5)
    assert step.idle == pytest.approx(step.bubble) == bubble_fraction(p, m) == (p - 1) / (m + p - 1)
    assert math.isclose(step.bubble / (1 - step.bubble), (p - 1) / m)
