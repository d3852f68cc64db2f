"""Every kind of edit gives the logits of a forward pass that is written out with the change."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.inspection.edits.by_hand import MODELS, STACKS, Change, build, by_hand, softmax_of_visible
from transom.layers.observe import ActivationRecorder

HEADS, NEURONS = [1, 4], [0, 5]


def check(name: str, edit: dict[str, Any], change: Callable[[str], Change], **fields: Any) -> None:
    """Compare an edit of block 0 with a change of the pass by hand, in float64."""
    model, batch = build(name, **fields)
    stack = {"stack": STACKS[name]} if name == "translator" else {}
    plain = by_hand(name, model, batch, Change())
    with torch.no_grad():
        assert torch.allclose(model(batch), plain, rtol=0, atol=1e-10)
        with transom.edits(model, [{"blocks": [0], **stack, **edit}]) as scope:
            found = model(batch)
        assert torch.allclose(model(batch), plain, rtol=0, atol=1e-10)
    expected = by_hand(name, model, batch, change(STACKS[name]))
    assert (expected - plain).abs().max() > 1e-5, "the change matters"
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    assert scope.fired == (1,)


def replaced(axis: int, indices: list[int], value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that replaces indices of an axis."""

    def change(x: Tensor) -> Tensor:
        new = x.clone().movedim(axis, 0)
        new[indices] = value(x).movedim(axis, 0).expand_as(new)[indices]
        return new.movedim(0, axis)

    return change


def means(axes: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: x.mean(axes, keepdim=True).expand_as(x)


@pytest.mark.parametrize("name", MODELS)
def test_ablated_heads_are_slices_of_the_output_projection_that_are_zero(name: str) -> None:
    model, batch = build(name)
    width = model.config.d_value if hasattr(model.config, "d_value") else 2
    stack = {"stack": STACKS[name]} if name == "translator" else {}
    with torch.no_grad():
        plain = model(batch)
        with transom.edits(model, [{"kind": "ablate-heads", "blocks": [1], "heads": HEADS, **stack}]):
            found = model(batch)
        layer = model.get_submodule(f"{STACKS[name]}.blocks.1.attn")
        for head in HEADS:
            layer.o.weight[:, head * width : (head + 1) * width] = 0.0  # type: ignore[index, union-attr, operator]
        expected = model(batch)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12) and not torch.allclose(found, plain)


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_of_heads_and_neurons_is_over_all_tokens(name: str) -> None:
    check(
        name,
        {"kind": "ablate-heads", "heads": HEADS, "value": "mean"},
        lambda stack: Change(stack, 0, z=replaced(1, HEADS, means((0, 2)))),
    )
    check(
        name,
        {"kind": "ablate-neurons", "neurons": NEURONS, "value": "mean"},
        lambda stack: Change(stack, 0, hidden=replaced(2, NEURONS, means((0, 1)))),
    )


@pytest.mark.parametrize("name", MODELS)
def test_neurons_are_set_to_zero_or_to_those_of_another_row(name: str) -> None:
    zero = replaced(2, NEURONS, torch.zeros_like)
    other = replaced(2, NEURONS, lambda x: x.flip(0))  # of two rows, the other one
    check(name, {"kind": "ablate-neurons", "neurons": NEURONS}, lambda stack: Change(stack, 0, hidden=zero))
    check(name, {"kind": "ablate-neurons", "neurons": NEURONS, "value": "resample"}, lambda stack: Change(stack, 0, hidden=other))


def without_keys(products: Tensor, d_head: int, mask: Tensor) -> Tensor:
    """Hide keys 0 and 2 from query 3 in heads 1 and 4."""
    dense = mask.expand_as(products).clone()
    for head in HEADS:
        dense[:, head, 3, [0, 2]] = False
    return softmax_of_visible(products, d_head, dense)


@pytest.mark.parametrize("name", MODELS)
def test_a_knocked_out_key_is_masked(name: str) -> None:
    edit = {"kind": "knock-out-key", "heads": HEADS, "queries": [3], "keys": [0, 2]}
    check(name, edit, lambda stack: Change(stack, 0, weights=without_keys))


@pytest.mark.parametrize("name", MODELS)
def test_unscaled_scores_have_scale_one(name: str) -> None:
    check(name, {"kind": "unscaled-scores"}, lambda stack: Change(stack, 0, weights=lambda s, d, mask: softmax_of_visible(s, 1, mask)))


@pytest.mark.parametrize("name", ["gpt", "llama", "translator"])
def test_zeros_after_the_softmax_leave_sums_below_one(name: str) -> None:
    change = Change(STACKS[name], 0, weights=lambda s, d, mask: (s * d**-0.5).softmax(-1) * mask)
    check(name, {"kind": "zero-after-softmax"}, lambda stack: change)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sublayer", ["attn", "ff"])
def test_a_sublayer_without_its_residual_is_the_function_alone(name: str, sublayer: str) -> None:
    check(name, {"kind": "no-residual", "sublayer": sublayer}, lambda stack: Change(stack, 0, without={sublayer}))


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        ({"kind": "ablate-heads", "heads": HEADS}, {"z": replaced(1, HEADS, torch.zeros_like)}),
        ({"kind": "knock-out-key", "heads": HEADS, "queries": [3], "keys": [0, 2]}, {"weights": without_keys}),
        ({"kind": "unscaled-scores"}, {"weights": lambda s, d, mask: softmax_of_visible(s, 1, mask)}),
    ],
    ids=lambda each: each.get("kind", ""),
)
def test_cross_attention_is_edited_likewise(edit: dict[str, Any], change: dict[str, Any]) -> None:
    check("translator", {**edit, "part": "cross"}, lambda stack: Change(stack, 0, "cross", **change))


def test_a_cross_attention_without_its_residual() -> None:
    check("translator", {"kind": "no-residual", "sublayer": "cross"}, lambda stack: Change(stack, 0, without={"cross"}))


def test_the_encoder_of_a_translator_is_edited_by_its_name() -> None:
    edit = {"kind": "unscaled-scores", "stack": "encoder"}
    check("translator", edit, lambda stack: Change("encoder", 0, weights=lambda s, d, mask: softmax_of_visible(s, 1, mask)))


@pytest.mark.parametrize("name", MODELS)
def test_scaled_and_set_streams(name: str) -> None:
    model, batch = build(name)
    at = f"{STACKS[name]}.blocks.1.resid_mid"
    scaled = Change(STACKS[name], 1, resid_mid=replaced(1, [1, 3], lambda x: 2.5 * x))
    filled = Change(STACKS[name], 1, resid_mid=replaced(2, [0, 7], lambda x: torch.full_like(x, -1.5)))
    for edit, change in (
        ({"kind": "scale", "name": at, "factor": 2.5, "positions": [1, 3]}, scaled),
        ({"kind": "set", "name": at, "value": -1.5, "neurons": [0, 7]}, filled),
    ):
        with torch.no_grad(), transom.edits(model, [edit]):
            assert torch.allclose(model(batch), by_hand(name, model, batch, change), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_a_factor_of_one_and_the_own_values_change_no_bit(name: str) -> None:
    model, batch = build(name)
    with torch.no_grad():
        plain = model(batch)
        edits: list[dict[str, Any]] = [{"kind": "scale", "name": "resid_post", "factor": 1.0}]
        with transom.edits(model, edits):
            assert torch.equal(model(batch), plain)
        recorder = ActivationRecorder([f"{STACKS[name]}.blocks.1.resid_mid"])
        one = model.as_batch(batch.pixels[:1]) if name == "vit" else None
        one = one or model.as_batch(
            batch.source.tokens[:1], **({"decoder_tokens": batch.decoder_input.tokens[:1]} if name == "translator" else {})
        )
        alone = model(one, recorder)
        (x,) = recorder.activations.values()
        own = [
            {"kind": "set", "name": f"{STACKS[name]}.blocks.1.resid_mid", "positions": [i], "value": x[0, i].tolist()}
            for i in range(x.shape[1])
        ]
        with transom.edits(model, own):
            assert torch.equal(model(one), alone)


@pytest.mark.parametrize("name", [*MODELS])
def test_all_of_another_input_gives_its_logits(name: str) -> None:
    model, batch = build(name)
    other = model.as_batch(batch.pixels[1:]) if name == "vit" else None
    options = {"decoder_tokens": batch.decoder_input.tokens[1:]} if name == "translator" else {}
    other = other or model.as_batch(batch.source.tokens[1:], **options)
    edit = {"kind": "patch", "name": f"{STACKS[name]}.blocks.1.resid_post", "text": "other"}
    with torch.no_grad(), transom.edits(model, [edit], inputs={"other": other}):
        found, expected = model(batch), model(other)
    assert torch.allclose(found, expected.expand_as(found), rtol=0, atol=1e-12)


@pytest.mark.parametrize("site", ["resid_post", "attn.z", "attn.k"])
def test_a_patch_takes_its_values_from_other_positions(site: str) -> None:
    """Into position 3 and 1 of a text come those of 0 and 2 of another; every other position is that of an own pass up to there."""
    model, _ = build("gpt")
    one, other = torch.tensor([[3, 4, 5, 6, 1]]), torch.tensor([[6, 7, 8]])
    address = f"decoder.blocks.0.{site}"
    edit = {"kind": "patch", "name": address, "text": "other", "positions": [3, 1], "from_positions": [0, 2]}
    own, theirs = (transom.trace(model, tokens, [address])[1][address] for tokens in (one, other))
    expected, axis = own.clone(), own.ndim - 2
    for place, source in ((3, 0), (1, 2)):
        expected.select(axis, place).copy_(theirs.select(axis, source))
    with torch.no_grad(), transom.edits(model, [edit], inputs={"other": other}):
        found = transom.trace(model, one, [address])[1][address]
    assert torch.equal(found, expected) and not torch.equal(found, own)


def test_one_position_of_another_text_can_go_to_several() -> None:
    model, _ = build("gpt")
    one, other = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7]])
    edit = {"kind": "patch", "name": "decoder.blocks.1.resid_post", "text": "other", "positions": [0, 2], "from_positions": [1, 1]}
    with torch.no_grad():
        plain, of_other = model(one), model(other)
        with transom.edits(model, [edit], inputs={"other": other}):
            found = model(one)
    assert torch.allclose(found[:, [0, 2]], of_other[:, [1, 1]], rtol=0, atol=1e-12) and torch.equal(found[:, 1], plain[:, 1])


def test_reference_texts_give_means_and_samples_at_positions() -> None:
    model, batch = build("gpt")
    texts = {"a": torch.tensor([[1, 3, 5]]), "b": torch.tensor([[2, 4, 6, 8, 7]])}
    recorded = {}
    for text, tokens in texts.items():
        recorder = ActivationRecorder(["decoder.blocks.0.attn.z"])
        with torch.no_grad():
            model(tokens, recorder)
        recorded[text] = recorder.activations["decoder.blocks.0.attn.z"]
    mean = torch.cat([recorded["a"], recorded["b"]], 2).mean(2, keepdim=True)
    edit = {"kind": "ablate-heads", "blocks": [0], "heads": HEADS, "texts": ["a", "b"]}
    with torch.no_grad():
        with transom.edits(model, [{**edit, "value": "mean"}], inputs=texts):
            found = model(batch)
        change = Change("decoder", 0, z=replaced(1, HEADS, lambda z: mean.expand_as(z)))
        assert torch.allclose(found, by_hand("gpt", model, batch, change), rtol=0, atol=1e-10)
        with transom.edits(model, [{**edit, "value": "resample", "texts": ["a"]}], inputs=texts):
            found = model(batch)
    first = replaced(1, HEADS, lambda z: torch.cat([recorded["a"].expand(2, -1, -1, -1), z[:, :, 3:]], 2))
    expected = by_hand("gpt", model, batch, Change("decoder", 0, z=first))
    assert torch.allclose(found, expected, rtol=0, atol=1e-10), "positions that the text lacks are left"


def test_a_resampled_row_is_drawn_by_the_seed() -> None:
    model, batch = build("gpt")
    texts = {str(i): torch.randint(1, 9, (1, 5), generator=torch.Generator().manual_seed(i)) for i in range(8)}

    def logits(seed: int) -> Tensor:
        edit = {"kind": "ablate-heads", "value": "resample", "texts": [*texts], "seed": seed}
        with torch.no_grad(), transom.edits(model, [edit], inputs=texts):
            return model(batch)  # type: ignore[no-any-return]

    assert torch.equal(logits(1), logits(1))
    assert len({tuple(logits(seed).flatten().tolist()) for seed in range(5)}) > 1


def test_padding_is_no_part_of_a_mean() -> None:
    model, _ = build("gpt")
    tokens, alone = torch.tensor([[3, 4, 5, 6, 2], [7, 2, 0, 0, 0]]), torch.tensor([[3, 4, 5, 6, 2]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    edit = {"kind": "ablate-heads", "blocks": [0], "value": "mean"}
    with torch.no_grad(), transom.edits(model, [edit]):
        assert torch.allclose(model(tokens, attention_mask=mask)[:1], model(alone), rtol=0, atol=1e-12)
