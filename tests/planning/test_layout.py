"""Layouts that do not fit a model are refused for the right reason, and the nearest layout fits."""

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.config.recipe import parse_model_config
from transom.config.training import RDropTrainingConfig, TextTrainingConfig, TrainingConfig
from transom.errors import ConfigError
from transom.planning.layout import check_layout, format_layout, layout_problems, layouts_by_distance, nearest_layout, parse_layout
from transom.tasks.image_classification.schema import ImageTrainingConfig

DECODER: dict[str, Any] = {"kind": "decoder", "d_model": 32, "n_heads": 8, "n_kv_heads": 4, "d_ff": 48, "n_layers": 6, "max_seq_len": 16}
MOE = {"kind": "moe", "n_experts": 6, "d_expert": 20}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": DECODER,
    "experts": DECODER | {"feed_forward": MOE},
    "translator": {"kind": "seq2seq", "d_model": 32, "n_heads": 4, "d_ff": 64, "decoder_n_heads": 8, "decoder_d_ff": 48},
    "image": {"kind": "vision-transformer", "d_model": 32, "n_heads": 4, "d_ff": 64, "n_layers": 3, "image_size": 16, "patch_size": 4},
    "recurrent": {"kind": "recurrent-decoder", "d_model": 32, "n_layers": 2},
    "convolutional": {"kind": "convolutional", "image_size": 16, "classes": ["a", "b"]},
}


def model(name: str, **fields: Any) -> ModelConfig:
    return parse_model_config(MODELS[name] | fields)


def training(**fields: Any) -> TextTrainingConfig:
    return RDropTrainingConfig.model_validate({"grad_accum_steps": 8, "batch_tokens": 4096} | fields)


@pytest.mark.parametrize(
    ("config", "layout", "expected"),
    [
        (
            model("decoder", d_model=36, n_heads=12, n_kv_heads=3),
            "tensor=2",
            r"parallel\.tensor: .* divisor of model\.n_kv_heads = 3, found 2",
        ),
        (model("decoder"), "tensor=3", r"parallel\.tensor: .* divisor of model\.n_heads = 8, found 3"),
        (model("decoder", d_ff=50), "tensor=4", r"parallel\.tensor: .* divisor of model\.d_ff = 50, found 4"),
        (model("experts"), "tensor=8", r"parallel\.tensor: .* divisor of model\.feed_forward\.d_expert = 20, found 8"),
        (model("translator"), "tensor=8", r"parallel\.tensor: .* divisor of model\.n_heads = 4, found 8"),
        (model("translator", decoder_d_ff=46), "tensor=4", r"parallel\.tensor: .* divisor of model\.decoder_d_ff = 46, found 4"),
        (model("decoder"), "pipeline=7", r"parallel\.pipeline: expected at most the model's 6 blocks, found 7"),
        (model("translator"), "pipeline=13", r"parallel\.pipeline: expected at most the model's 12 blocks, found 13"),
        (model("decoder"), "context=17", r"parallel\.context: expected at most model\.max_seq_len = 16, found 17"),
        (model("image"), "context=18", r"parallel\.context: expected at most the tokens of an image = 1[67], found 18"),
        (model("decoder"), "expert=2", r"parallel\.expert: expected 1 without a mixture of experts .*'swiglu'\), found 2"),
        (model("experts"), "expert=4", r"parallel\.expert: expected a divisor of model\.feed_forward\.n_experts = 6, found 4"),
        (model("recurrent"), "tensor=2", r"parallel\.tensor: expected 1, since this model is .*, not a Transformer, found 2"),
        (model("recurrent"), "context=2", r"parallel\.context: expected 1, since this model is .*, found 2"),
        (model("convolutional"), "pipeline=2", r"parallel\.pipeline: expected 1, since this model is .*, found 2"),
        (model("image", norm="batchnorm"), "data=2", r"parallel\.data: expected 1 with model\.norm = 'batchnorm', which .*, found 2"),
        (model("decoder", depth="mod"), "tensor=2", r"parallel\.tensor: expected 1 with model\.depth = 'mod', which .*, found 2"),
        (
            model("decoder", attention={"value_residual": "learned"}),
            "pipeline=2,context=2",
            r"parallel\.pipeline: expected 1 with model\.attention\.value_residual = 'learned' and tensor or context, which .*, found 2",
        ),
        (
            model("decoder", attention={"approximation": "linear"}),
            "context=2",
            r"parallel\.context: expected 1 with model\.attention\.approximation = 'linear', which .*, found 2",
        ),
        (
            model("experts", feed_forward=MOE | {"capacity_factor": 1.5}),
            "expert=2",
            r"parallel\.expert: expected 1 with model\.feed_forward\.capacity_factor, which .*, found 2",
        ),
    ],
)
def test_a_model_that_an_axis_cannot_divide_is_refused(config: ModelConfig, layout: str, expected: str) -> None:
    problems = layout_problems(config, parse_layout(layout))
    assert any(re.fullmatch(expected, problem) for problem in problems), problems
    assert layout_problems(config, ParallelConfig()) == []


@pytest.mark.parametrize(
    ("settings", "layout", "expected"),
    [
        (training(optimizer="muon"), "shard=2", r"parallel\.shard: expected 1 with training\.optimizer = 'muon', which .*, found 2"),
        (training(optimizer="muon"), "tensor=2", r"parallel\.tensor: expected 1 with training\.optimizer = 'muon', which .*, found 2"),
        (training(adapter={"rank": 2}), "pipeline=2", r"parallel\.pipeline: expected 1 with training\.adapter, whose .*, found 2"),
        (training(precision="fp16"), "shard=2", r"parallel\.shard: expected 1 with training\.precision = 'fp16', whose .*, found 2"),
        (training(batch_tokens=7), "data=2,shard=4", r"training\.batch_tokens: expected at least one for each of .* = 8 parts.*, found 7"),
        (
            ImageTrainingConfig(batch_size=4),
            "data=8",
            r"training\.batch_size: expected at least one for each of .* = 8 parts.*, found 4",
        ),
    ],
)
def test_settings_that_a_layout_does_not_support_are_refused(settings: TrainingConfig, layout: str, expected: str) -> None:
    (problem,) = layout_problems(model("decoder"), parse_layout(layout), settings)
    assert re.fullmatch(expected, problem), problem
    assert layout_problems(model("decoder"), parse_layout("data=2,context=2"), settings) == []


def test_a_refusal_names_every_reason_and_the_nearest_mesh() -> None:
    with pytest.raises(ConfigError, match=r"n_heads = 8, found 3; .*d_ff = 50, found 3; the nearest mesh that fits is data=6,tensor=2"):
        check_layout(model("decoder", d_ff=50), parse_layout("data=4,tensor=3"))
    check_layout(model("decoder"), parse_layout("data=4,tensor=4"))


AXES = {"data": 9, "shard": 9, "tensor": 9, "pipeline": 8, "context": 5, "expert": 7}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.fixed_dictionaries({axis: st.integers(1, most) for axis, most in AXES.items()}),
    st.integers(1, 300),
    st.integers(1, 6),
    st.sampled_from(["adam", "muon"]),
)
def test_the_nearest_layout_fits(name: str, sizes: dict[str, int], batch: int, passes: int, optimizer: str) -> None:
    """It has no problems, is the layout itself if that has none, and has the most processes up to those of the layout."""
    layout = ParallelConfig(**{axis: size if size == 1 or size % 2 == 0 or axis == "tensor" else 1 for axis, size in sizes.items()})
    config, settings_ = model(name), training(batch_tokens=batch, grad_accum_steps=passes, optimizer=optimizer)
    nearest = nearest_layout(config, layout, settings_)
    assert layout_problems(config, nearest, settings_) == []
    assert nearest.n_processes <= layout.n_processes
    if not layout_problems(config, layout, settings_):
        assert nearest == layout
    for n in range(nearest.n_processes + 1, min(layout.n_processes, nearest.n_processes + 8) + 1):
        assert layouts_by_distance(config, layout, settings_, n) == []
    assert nearest == layouts_by_distance(config, layout, settings_, nearest.n_processes)[0]


def test_distance_counts_doublings() -> None:
    config, wanted = model("decoder"), parse_layout("data=16,tensor=4")
    found = layouts_by_distance(config, wanted, None, 64)
    far = [sum(abs(math.log2(a / b)) for a, b in zip(each.sizes, wanted.sizes, strict=True)) for each in found]
    assert found[0] == wanted and far == sorted(far)
    assert {format_layout(each) for each, d in zip(found, far, strict=True) if d == 2} >= {"data=32,tensor=2", "data=8,shard=2,tensor=4"}


def test_a_large_layout_is_replaced_at_once() -> None:
    found = nearest_layout(model("recurrent"), parse_layout("data=512,tensor=32"), training(batch_tokens=1000))
    assert format_layout(found) == "data=1000"


@settings(max_examples=50)
@given(st.fixed_dictionaries({axis: st.integers(1, 6) for axis in AXES}))
def test_a_layout_is_read_as_it_is_written(sizes: dict[str, int]) -> None:
    layout = ParallelConfig(**sizes)
    assert parse_layout(format_layout(layout)) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--mesh: expected an axis with its size, such as data=8, found ''"),
        ("tensors=2", "found 'tensors=2'.*tensor"),
        ("data", "--mesh: expected data from 1 to 65,536, found ''"),
        ("data=0", "--mesh: expected data from 1 to 65,536, found '0'"),
        ("data=２", "--mesh: expected data from 1 to 65,536, found '２'"),
        ("data=" + "9" * 5000, f"--mesh: expected data from 1 to 65,536, found '{'9' * 20}'"),
        ("data=2,data=2", "--mesh: expected each axis once, found data twice"),
        ("data=60000,tensor=60000", "--mesh: expected at most 65,536 processes, found 3,600,000,000"),
    ],
)
def test_a_mesh_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_layout(text)


def test_only_the_micro_batches_of_a_contrastive_loss_have_to_be_as_many_as_the_stages() -> None:
    few, layout = training(grad_accum_steps=3), parse_layout("pipeline=4")
    assert not layout_problems(model("decoder"), layout, few)
    embedder = parse_model_config({"kind": "text-embedder", "n_layers": 4, "d_model": 16, "n_heads": 2, "d_ff": 16})
    (problem,) = layout_problems(embedder, layout, few)
    assert problem.startswith("training.grad_accum_steps: expected at least parallel.pipeline = 4 micro-batches") and problem.endswith(
        "found 3"
    )
