"""Image models with any components: logits depend on their own image and all of it; training, FLOPs, sites and saving work."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.models.combinations import (
    APPROXIMATIONS,
    ATTENTION,
    DEPTHS,
    FEED_FORWARD,
    NORMS,
    PATTERNS,
    PLACEMENTS,
    also,
    choices,
    chosen,
    each,
    fitting,
    passing_first,
    set_components,
    with_approximation,
)
from tests.models.test_combinations import built, may_be_idle, may_rest
from transom.checkpoints.tensors import load_weights_into, serialize_tensors
from transom.config.model import AnyModel
from transom.config.recipe import parse_model_config
from transom.config.training import AdamConfig, TrainingConfig
from transom.config.vision import ConvolutionalNetworkConfig, ImageClassifierConfig, VisionTransformerConfig
from transom.data.batch import ImageBatch, MixupLabels
from transom.inspection.activation_sites import list_sites
from transom.inspection.recompute import recompute_attention_weights
from transom.layers.attention import repeat_kv
from transom.layers.masks import block_sparse_mask as tiles_planning
from transom.layers.observe import ActivationRecorder
from transom.layers.position_encoding import build_position_encoding, resize_position_grid, sinusoidal_table
from transom.layers.vision.channel_attention import SqueezeExcitation
from transom.layers.vision.patch_embedding import patchify
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning import flops
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters
from transom.training.objectives.mixup import MixupCrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

CLOSE = {"rtol": 0, "atol": 1e-10}
STEMS: list[Any] = [
    "none",
    *({"kind": "convolutional", "channels": channels, "convs_per_stage": depth, "attention": attention} for channels, depth, attention in (
        ([4], 1, "none"), ([4, 6], 1, {"kind": "se", "reduction": 1}), ([3], 2, {"kind": "cbam", "reduction": 1, "kernel_size": 3}),
    )),
]  # fmt: skip
IMAGE_PATTERNS: list[Any] = [
    {"kind": "window-2d", "size": 2},
    [{"kind": "window-2d", "size": 2}, "full"],
    {"kind": "any", "patterns": [{"kind": "block-local", "size": 4}, {"kind": "strided", "stride": 4}]},
    {"kind": "all", "patterns": [{"kind": "window-2d", "size": 3}, {"kind": "not", "patterns": {"kind": "window-2d", "size": 1}}]},
]
SHARED: dict[str, Any] = {"image_size": 8, "classes": ["a", "b", "c"], "d_model": 12}
PLAIN = {"kind": "vision-transformer", "n_layers": 2, "n_heads": 4, "d_ff": 9}
BASIC = PLAIN | {"patch_size": 2, "depth": "full", "attention": {}, "feed_forward": "geglu-tanh"}
BRICKS: dict[str, list[Any]] = {
    "n_kv_heads": [4, 2],
    "patch_size": [1, 2],
    "channels": [1, 3],
    "pooling": ["cls", "mean", "mean", "cls"],
    "position": ["learned", "sinusoidal-2d", "none"],
    "stem": STEMS,
    "norm": NORMS,
    "norm_placement": PLACEMENTS,
    "depth": DEPTHS,
    "dropout": [0.0, 0.2],
}
SIGHTS = ATTENTION | {"pattern": IMAGE_PATTERNS + PATTERNS}
DRAWN = st.fixed_dictionaries(
    {
        **each(BRICKS),
        "attention": st.fixed_dictionaries(each(SIGHTS)),
        "feed_forward": FEED_FORWARD,
        **{k: st.just(v) for k, v in PLAIN.items()},
    }
).map(fitting)
APPROXIMATED = st.tuples(DRAWN, st.sampled_from(APPROXIMATIONS)).map(lambda drawn: with_approximation(*drawn))
STAGES = st.fixed_dictionaries({"kind": st.just("convolutional"), "channels": st.sampled_from([1, 3]), "stem": st.sampled_from(STEMS[1:])})
NETWORKS = DRAWN | DRAWN | DRAWN | APPROXIMATED | STAGES
SET_TRANSFORMERS = [PLAIN | fields for fields in set_components(BRICKS, SIGHTS, 16)]
SET_NETWORKS: list[dict[str, Any]] = [
    *SET_TRANSFORMERS,
    *map(with_approximation, SET_TRANSFORMERS, APPROXIMATIONS),
    *({"kind": "convolutional", "channels": 1, "stem": stem, "head_bias": True} for stem in STEMS[1:]),
    BASIC | {"norm_placement": "parallel-separate"},
    *(BASIC | {"distillation": kind, "position": position} for kind, position in (("token", "sinusoidal-2d"), ("head", "learned"))),
]
"""Fixed combinations that cover every component."""


def described(fields: dict[str, Any]) -> ImageClassifierConfig:
    config: ImageClassifierConfig = TypeAdapter(AnyModel).validate_python(SHARED | fields)
    if isinstance(config, VisionTransformerConfig) and config.grid == 1:  # with one patch queries and keys have no part in anything
        return described(fields | {"patch_size": 1})
    return config


def seeing_all(fields: dict[str, Any]) -> dict[str, Any]:
    """Make all patches attend to each other, so that each influences the logits of a narrow network with any pooling."""
    if fields["kind"] == "convolutional":
        return fields
    return passing_first(fields | {"attention": fields["attention"] | {"pattern": "full"}})


def batch_of(config: ImageClassifierConfig, n: int = 3) -> ImageBatch:
    torch.manual_seed(2)
    pixels = torch.rand(n, config.channels, config.image_size, config.image_size, dtype=torch.float64)
    return ImageBatch(pixels, torch.arange(n) % 3, tuple(range(n)))


@pytest.mark.long
@also(SET_NETWORKS)
@also(SET_NETWORKS)
@settings(max_examples=6)
@given(NETWORKS)
@torch.no_grad()
def test_an_image_is_seen_whole_and_alone(fields: dict[str, Any]) -> None:
    config = described(seeing_all(fields))
    model, batch = built(config), batch_of(config)
    whole = model(batch)
    assert whole.shape == (3, 3) and whole.isfinite().all()
    alone = [model(ImageBatch(batch.pixels[i : i + 1], batch.labels[i : i + 1], (i,)))[0] for i in range(3)]
    assert torch.allclose(whole, torch.stack(alone), **CLOSE)
    for corner in (0, 7):
        pixels = batch.pixels.clone()
        pixels[0, :, corner, corner] += 1.0
        assert not torch.allclose(model(ImageBatch(pixels, batch.labels, batch.sample_ids))[0], whole[0], **CLOSE)


@pytest.mark.long
@also(SET_NETWORKS, True)
@settings(max_examples=8)
@given(NETWORKS, st.booleans())
def test_it_learns_and_is_counted_right(fields: dict[str, Any], mixed: bool) -> None:
    config = described(fields)
    model, batch = built(config).float().train(), batch_of(config)
    other = MixupLabels(batch.labels.roll(1), torch.tensor([0.5, 0.9, 0.8])) if mixed else None
    batch = ImageBatch(batch.pixels.float(), batch.labels, batch.sample_ids, other)
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(batch)
    counted = count_flops(config, 3, config.n_positions if isinstance(config, VisionTransformerConfig) else 0, 1)
    assert counted.forward == counter.get_total_flops()
    training = TrainingConfig(max_grad_norm=None, label_smoothing=0.0)
    stepper = TrainStep(model, build_optimizer(model, AdamConfig()), training, torch.float32, MixupCrossEntropy(label_smoothing=0.0))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    active = active_bottlenecks(model)
    stepper.step([batch], 3e-3)
    model.eval()
    losses = [stepper.step([batch], 1e-3).loss for _ in range(6)]
    assert losses[-1] < losses[0]
    unchanged = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    bottlenecks = [name for name, module in model.named_modules() if isinstance(module, SqueezeExcitation) and name not in active]
    unchanged -= {f"{name}.{weight}" for name in bottlenecks for weight in ("squeeze.weight", "squeeze.bias", "excite.weight")}
    assert not [name for name in unchanged if not may_be_idle(model, name)]


def active_bottlenecks(model: Network) -> set[str]:
    """Return a set to which each forward pass adds the channel attentions with a positive hidden unit; the others have no gradient."""
    active = set[str]()
    for name, module in model.named_modules():
        if isinstance(module, SqueezeExcitation):

            def record(_: nn.Module, __: object, hidden: Tensor, name: str = name) -> None:
                if hidden.gt(0).any():
                    active.add(name)

            module.squeeze.register_forward_hook(record)
    return active


@pytest.mark.long
@also(SET_NETWORKS)
@settings(max_examples=6)
@given(NETWORKS)
@torch.no_grad()
def test_every_site_is_named_and_patterns_are_those_that_were_used(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, recorder, batch = built(config), ActivationRecorder(["*"]), batch_of(config)
    assert torch.equal(model(batch, recorder), model(batch))
    known = [site.address for site in list_sites(config)]
    assert [address for address in known if address in recorder.activations or not may_rest(model, address)] == list(recorder.activations)
    assert "pooled" in recorder.activations and ("embedding.resid" in recorder.activations) == isinstance(config, VisionTransformerConfig)
    for i in range(2 if isinstance(config, VisionTransformerConfig) else 0):
        name = f"encoder.blocks.{i}.attn"
        if f"{name}.z" not in recorder.activations:
            continue  # no token chose its block
        weights = recompute_attention_weights(model, name, recorder.activations, batch)
        z: Tensor = weights @ repeat_kv(recorder.activations[f"{name}.v"], 4)
        assert torch.allclose(z, recorder.activations[f"{name}.z"], **CLOSE)


@also(SET_NETWORKS)
@settings(max_examples=5)
@given(NETWORKS)
@torch.no_grad()
def test_it_is_saved_whole(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, other = built(config), build_model(config).double().eval()
    with TemporaryDirectory() as folder:
        (file := Path(folder) / "model.safetensors").write_bytes(serialize_tensors(model.state_dict()))
        load_weights_into(other, file)
    assert torch.equal(model(batch_of(config)), other(batch_of(config)))
    assert type(config).model_validate(config.model_dump()) == config


@pytest.mark.parametrize("fields", SET_NETWORKS, ids=[f"{i} {fields['kind']}" for i, fields in enumerate(SET_NETWORKS)])
@torch.no_grad()
def test_float32_is_near_float64_in_all_elements(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, batch = built(config), batch_of(config)
    exact = model(batch)
    found = model.float()(ImageBatch(batch.pixels.float(), batch.labels, batch.sample_ids))
    assert (found - exact).abs().max() <= 1e-5 * exact.abs().max().clamp(min=1.0)


def test_every_choice_that_a_schema_has_is_in_the_set_combinations() -> None:
    assert choices(VisionTransformerConfig, ConvolutionalNetworkConfig) <= set().union(
        *(chosen(described(fields)) for fields in SET_NETWORKS)
    )


def test_patches_are_squares_row_by_row() -> None:
    image = torch.arange(2 * 4 * 6).reshape(1, 2, 4, 6).float()
    cut = patchify(image, 2)
    assert cut.shape == (1, 6, 8)
    for number in range(6):
        row, column = 2 * (number // 3), 2 * (number % 3)
        assert torch.equal(cut[0, number], image[0, :, row : row + 2, column : column + 2].flatten())


def test_positions_of_a_grid_are_sinusoids_of_row_and_column() -> None:
    config = described({"kind": "vision-transformer", "patch_size": 2, "n_heads": 4, "position": "sinusoidal-2d"})
    table = build_position_encoding(config, causal=False)(torch.arange(17)[None])  # type: ignore[arg-type]
    line = sinusoidal_table(4, 6)
    assert table is not None and (table[0, 0] == 0).all(), "the class token has a zero encoding"
    for row in range(4):
        for column in range(4):
            assert torch.equal(table[0, 1 + 4 * row + column], torch.cat([line[row], line[column]]))


def test_a_resized_grid_is_the_picture_at_another_size_and_the_token_in_front_stays() -> None:
    table = torch.randn(37, 2)
    assert torch.equal(resize_position_grid(table, 37), table)
    double = resize_position_grid(table, 145)
    assert torch.equal(double[0], table[0])
    a, kernel = -0.75, []  # Keys 1981, eq. 4, at the distances of a half-sized step
    for x in (1.75, 0.75, 0.25, 1.25):
        near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        kernel.append(near if x <= 1 else far)
    weights, grid = torch.tensor(kernel), table[1:].reshape(6, 6, 2)
    expected = torch.einsum("i,j,ijc->c", weights, weights, grid[1:5, 1:5])  # place 6 of 12 is 2.75 of 6
    assert torch.allclose(double[1:].reshape(12, 12, 2)[6, 6], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 10, "patch_size": 4}, "multiple of 4 pixels, the side of a patch, found 10"),
        ({"image_size": 10, "patch_size": 1, "stem": STEMS[2]}, "multiple of 4, since each stage of the stem halves the image, found 10"),
        ({"image_size": 4096, "patch_size": 1}, "at most 65536 patches, found 4096 x 4096"),
        ({"d_model": 6, "n_heads": 2, "position": "sinusoidal-2d"}, "multiple of 4, found 6"),
        ({"attention": {"pattern": {"kind": "window-2d", "size": 0}}}, "greater than or equal to 1"),
        ({"pixel_mean": [0.5]}, "pixel_mean with 3 values, one per channel, found 1"),
        ({"stem": {"kind": "convolutional", "attention": {"kind": "cbam", "kernel_size": 4}}}, "an odd kernel_size, found 4"),
    ],
)
def test_what_does_not_fit_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionTransformerConfig.model_validate({"n_heads": 4, **SHARED, **fields})


def test_pixels_are_normalised_by_the_statistics_of_the_data() -> None:
    plain = {"kind": "convolutional", "channels": 1, "stem": STEMS[1]}
    ours, theirs = (built(described(plain | more)) for more in ({}, {"pixel_mean": [0.25], "pixel_std": [0.5]}))
    batch = batch_of(described(plain))
    moved = ImageBatch(batch.pixels * 0.5 + 0.25, batch.labels, batch.sample_ids)
    assert torch.allclose(ours(batch), theirs(moved), **CLOSE)


def explicit(pattern: str, pool: str) -> Tensor:
    """Return the mask of a 4 x 4 grid of patches, computed patch by patch."""
    rules: dict[str, Any] = {
        "window": lambda a, b: abs(a - b) < 3,
        "window-2d": lambda a, b: abs(a // 4 - b // 4) < 2 and abs(a % 4 - b % 4) < 2,
        "axial": lambda a, b: a // 4 == b // 4 or a % 4 == b % 4,
        "global": lambda a, b: a == 0 or b == 0,
    }
    patchify = torch.tensor([[rules[pattern](a, b) for b in range(16)] for a in range(16)])
    return patchify if pool == "mean" else torch.nn.functional.pad(patchify, (1, 0, 1, 0), value=True)


BY_HAND: dict[str, Any] = {
    "window": {"kind": "window", "size": 3},
    "window-2d": {"kind": "window-2d", "size": 2},
    "axial": {"kind": "any", "patterns": [{"kind": "block-local", "size": 4}, {"kind": "strided", "stride": 4}]},
    "global": "global",
}


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("name", BY_HAND)
@torch.no_grad()
def test_patterns_are_explicit_masks_over_the_grid(name: str, pool: str) -> None:
    """The attention of each block, from its recorded queries and keys, by the equation and an explicit mask."""
    fields = {"kind": "vision-transformer", "patch_size": 2, "n_layers": 2, "n_heads": 4, "d_ff": 9, "pooling": pool}
    config = described(fields | {"attention": {"pattern": [BY_HAND[name], "full"]}})
    model, recorder, batch = built(config), ActivationRecorder(["*"]), batch_of(config)
    model(batch, recorder)
    for block, mask in ((0, explicit(name, pool)), (1, torch.tensor(True))):
        q, k, v, z = (recorder.activations[f"encoder.blocks.{block}.attn.{site}"] for site in "qkvz")
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        assert torch.allclose(z, scores.softmax(-1) @ v, **CLOSE)


LARGE: list[Any] = [
    {"kind": "window-2d", "size": 3},
    {"kind": "any", "patterns": [{"kind": "block-local", "size": 24}, {"kind": "strided", "stride": 24}]},
    [{"kind": "window", "size": 9}, "full"],
]


@pytest.mark.kernels
@pytest.mark.parametrize("pattern", LARGE, ids=["window-2d", "axial", "window and full"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_tiles_of_large_images_change_nothing(pattern: Any, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"kind": "vision-transformer", "image_size": 24, "patch_size": 1, "n_layers": 2, "n_heads": 4, "d_ff": 9, "pooling": pool}
    config = described(fields | {"attention": {"pattern": pattern}})
    model, batch = built(config), batch_of(config, 2)
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 128)
    monkeypatch.setattr(tiles_planning, "MAX_DENSITY", 0.9)
    monkeypatch.setattr(tiles_planning, "MULTI_PART_COST", 1.0)
    flops._count_pairs.cache_clear()
    assert any(each.block_mask for each in model.context(batch.pixels).attention_contexts)  # type: ignore[operator]
    by_tiles = model(batch)
    gradients = torch.autograd.grad(by_tiles.square().mean(), list(model.parameters()))
    with FlopCounterMode(display=False) as counter:
        model(batch_of(config, 1))  # tiles of several images are laid together in other ways
    assert count_flops(config, 1, config.n_positions, 1).forward == counter.get_total_flops()  # type: ignore[attr-defined]
    flops._count_pairs.cache_clear()
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 10**6)
    written_out = model(batch)
    assert torch.allclose(by_tiles, written_out, **CLOSE)
    for a, b in zip(gradients, torch.autograd.grad(written_out.square().mean(), list(model.parameters())), strict=True):
        assert torch.allclose(a, b, **CLOSE)


@pytest.mark.parametrize("kind", ["vision-transformer", "convolutional"])
def test_pixels_in_float32_are_read_by_weights_in_bfloat16(kind: str) -> None:
    fields = {"d_model": 8, "image_size": 8, "channels": 1, "classes": ["a", "b"]}
    own = {"n_layers": 1, "n_heads": 2, "d_ff": 8, "patch_size": 4} if kind == "vision-transformer" else {"stem": {"channels": [4]}}
    model = build_model(parse_model_config({"kind": kind, **fields, **own})).eval()
    pixels = torch.rand(2, 1, 8, 8)
    expected = model(pixels)
    found = model.bfloat16()(pixels)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
