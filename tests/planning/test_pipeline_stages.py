"""Stages of a pipeline: FLOPs of each block add up to those of the model, and no other cut has a faster slowest stage."""

from itertools import combinations, pairwise
from typing import Any

import pytest

from transom.config.architecture import TransformerConfig
from transom.config.recipe import parse_model_config
from transom.planning.flops import count_flops
from transom.planning.pipeline_stages import balance_stages, count_block_flops

SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 12}


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "decoder", "vocab_size": 90, "n_layers": 5, "max_seq_len": 64, "depth": {"kind": "mod", "capacity": 0.5, "every": 2}},
        {"kind": "decoder", "vocab_size": 90, "n_layers": 1, "max_seq_len": 64, "feed_forward": {"kind": "moe", "n_experts": 3}},
        {
            "kind": "seq2seq",
            "source_vocab_size": 90,
            "target_vocab_size": 90,
            "n_encoder_layers": 3,
            "n_decoder_layers": 2,
            "max_seq_len": 64,
        },
        {"kind": "encoder", "vocab_size": 90, "n_layers": 2, "max_seq_len": 64},
        {"kind": "text-classifier", "vocab_size": 90, "n_layers": 3, "max_seq_len": 64, "classes": ["a", "b"]},
        {"kind": "vision-transformer", "n_layers": 3, "image_size": 8, "channels": 1, "classes": ["a", "b"]},
    ],
    ids=lambda fields: fields["kind"],
)
def test_the_blocks_flops_add_up(fields: dict[str, Any]) -> None:
    config = parse_model_config(SIZES | fields)
    assert isinstance(config, TransformerConfig)
    lengths = (config.n_positions, 1) if fields["kind"] == "vision-transformer" else (30, 20)
    flops = count_block_flops(config, *lengths)
    assert len(flops) == sum(config.stacks) and min(flops) > 0
    assert sum(flops) == count_flops(config, 1, *lengths).forward
    if fields["kind"] == "decoder" and len(flops) == 5:
        assert flops[0] == flops[2] > flops[1] == flops[3], "a routed block computes half of the tokens"


@pytest.mark.parametrize("flops", [[1] * 7, [1, 1, 1, 9], [9, 1, 1, 1, 1], [3, 1, 4, 1, 5, 9, 2, 6], [5, 5]])
def test_the_slowest_stage_is_the_fastest_possible(flops: list[int]) -> None:
    for n_stages in range(1, len(flops) + 1):
        stages = balance_stages(flops, n_stages)
        assert [i for stage in stages for i in stage] == list(range(len(flops))) and all(stages)
        cuts = [(0, *inner, len(flops)) for inner in combinations(range(1, len(flops)), n_stages - 1)]
        best = min(max(sum(flops[a:b]) for a, b in pairwise(cut)) for cut in cuts)
        assert max(sum(flops[i] for i in stage) for stage in stages) == best
        assert tuple(stage.start for stage in stages) == min(
            cut[:-1] for cut in cuts if max(sum(flops[a:b]) for a, b in pairwise(cut)) == best
        ), "among equals the first stages, which hold most activations, are small"
