"""Shrunken models: a layout divides them as it divides the model, over all families, packaged recipes and presets."""

import random
import re
from typing import Any

import pytest

from tests.tiers import every
from transom.cli.plan import load_planned
from transom.config.architecture import ModelConfig, TransformerConfig
from transom.config.packaged import packaged_presets, packaged_recipes
from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.planning.layout import layout_problems
from transom.planning.parameters import count_parameters
from transom.planning.shrink import shrink, shrink_layout
from transom.planning.stages import divide_stages

TEXT: dict[str, Any] = {"d_model": 96, "n_heads": 12, "d_ff": 250, "max_seq_len": 300}
FAMILIES: dict[str, dict[str, Any]] = {
    "odd heads": TEXT | {"kind": "decoder", "n_heads": 6, "n_kv_heads": 3, "d_head": 20, "d_value": 30, "vocab_size": 1003, "n_layers": 11},
    "two widths": TEXT
    | {"kind": "seq2seq", "decoder_n_heads": 8, "decoder_d_ff": 100, "n_encoder_layers": 3, "n_decoder_layers": 8}
    | {"source_vocab_size": 500, "target_vocab_size": 501, "tie_embeddings": "none"},
    "mixture": TEXT | {"kind": "decoder", "vocab_size": 1003, "feed_forward": {"kind": "moe", "n_experts": 12, "d_expert": 90}},
    "cycles": TEXT
    | {"kind": "decoder", "vocab_size": 1003, "n_layers": 12, "position": {"kind": "rotary", "rope_theta": [10.0, 20.0, 30.0]}}
    | {"attention": {"pattern": {"kind": "cycle", "patterns": ["full", "window"]}}},
    "no projection": TEXT | {"kind": "encoder", "vocab_size": 1003, "attention": {"output_projection": False}},
    "mask token": TEXT | {"kind": "encoder", "vocab_size": 1003, "mask_token_id": 103, "pad_token_id": 900},
    "classes": TEXT | {"kind": "text-classifier", "vocab_size": 1003, "classes": ["a", "b", "c"], "depth": {"kind": "mod", "every": 3}},
    "vectors": TEXT | {"kind": "text-embedder", "vocab_size": 1003, "position": "rotary"},
    "images": {"kind": "vision-transformer", "d_model": 96, "n_heads": 12, "image_size": 96, "patch_size": 8, "classes": ["a", "b"]}
    | {"position": "sinusoidal-2d", "stem": {"kind": "convolutional", "channels": [24, 40]}},
    "convolutions": {"kind": "convolutional", "image_size": 64, "classes": ["a", "b"]},
    "recurrent": {"kind": "recurrent-seq2seq", "d_model": 200, "d_embedding": 90, "source_vocab_size": 500, "target_vocab_size": 501}
    | {"tie_embeddings": "none", "n_encoder_layers": 4},
}
N_LAYOUTS = 12


def config_of(name: str) -> ModelConfig:
    return (
        parse_model_config(FAMILIES[name]) if name in FAMILIES else load_planned(name, (), 1003 if name in packaged_recipes() else None)[0]
    )


def layouts_of(name: str) -> list[ParallelConfig]:
    """Draw layouts, most of which do not fit."""
    draw = random.Random(name)
    sizes = [1, 1, 1, 2, 2, 3, 4, 5, 8, 13]
    layouts = [ParallelConfig(**{axis: draw.choice(sizes) for axis in ParallelConfig.AXES}) for _ in range(N_LAYOUTS - 2)]
    return [ParallelConfig(), ParallelConfig(pipeline=4, tensor=2), *layouts]


def kinds(value: Any) -> Any:
    """Keep the kinds of all components of a configuration."""
    if isinstance(value, dict):
        return {name: found for name, part in value.items() if (found := kinds(part)) or name == "kind"} | (
            {"kind": value["kind"]} if "kind" in value else {}
        )
    return [kinds(part) for part in value] if isinstance(value, list | tuple) else None


def problems(config: ModelConfig, layout: ParallelConfig) -> list[str]:
    """Return the problems of a layout without the sizes of the model."""
    return [re.sub(r"(?<== )[\d,]+|(?<=model's )\d+", "n", problem) for problem in layout_problems(config, layout)]


@pytest.mark.parametrize("name", [*FAMILIES, *every(8, [*packaged_presets(), *packaged_recipes()])])
def test_a_layout_divides_the_shrunken_model_as_it_divides_the_model(name: str) -> None:
    config = config_of(name)
    for layout in layouts_of(name):
        small = shrink(config, layout)
        assert problems(small, layout) == problems(config, layout), layout
        assert type(small) is type(config) and kinds(small.model_dump()) == kinds(config.model_dump())
        assert type(small).model_validate(small.model_dump(exclude_unset=True)) == small, "a valid configuration"
        assert count_parameters(small).total <= count_parameters(config).total
        if isinstance(config, TransformerConfig) and layout.pipeline <= sum(config.stacks):
            assert isinstance(small, TransformerConfig) and (small.n_heads, small.n_kv_heads) == (config.n_heads, config.n_kv_heads)
            stages = [
                [{stack: n > 1 for stack, n in stage.blocks.items()} for stage in divide_stages(c, layout.pipeline)]
                for c in (small, config)
            ]
            assert stages[0] == stages[1], layout


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt3-175b", "bert-large", "vit-large-16", "translation"])
def test_shrunken_models_are_small(name: str) -> None:
    assert count_parameters(shrink(config_of(name), ParallelConfig(tensor=2, pipeline=2))).total < 2_000_000


def test_remainders_stay() -> None:
    layout = ParallelConfig(tensor=3, shard=4)
    config = parse_model_config(FAMILIES["odd heads"] | {"d_ff": 253, "vocab_size": 1003})
    small: Any = shrink(config, layout)
    assert small.d_ff % 12 == 253 % 12 and small.vocab_size % 4 == 1003 % 4 and small.n_kv_heads == 3


@pytest.mark.parametrize("sizes", [(1, 1, 1), (100, 1, 1), (2, 64, 1), (4, 64, 8), (3, 5, 7), (1000, 1000, 100)])
def test_a_layout_keeps_two_parts_where_it_had_several(sizes: tuple[int, int, int]) -> None:
    layout = ParallelConfig(data=sizes[0], shard=sizes[1], tensor=sizes[2])
    small = shrink_layout(layout, 64)
    assert small.tensor == layout.tensor
    assert all(
        getattr(small, axis) == size if size <= 2 else 2 <= getattr(small, axis) <= size for axis, size in layout if axis != "tensor"
    )
    if small.n_processes > 64:
        assert small.data <= 2 and small.shard <= 2
    if layout.n_processes <= 64:
        assert small == layout
