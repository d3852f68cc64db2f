"""Contributions to a logit add up to it, and are those of vectors carried forward through the norms."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models.combinations import ENCODERS, FAMILIES, SET_TEXTS, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import PaddedSequences
from transom.errors import ConfigError
from transom.inspection.lenses.logit_attribution import LogitAttribution, logit_attribution
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

TARGET, SOURCE = PaddedSequences.pad([[1, 5, 8, 4]]), PaddedSequences.pad([[3, 4, 5, 6, 2]])
ONE_ANSWER = [fields for fields in SET_TEXTS if "recurrent" not in fields["kind"] and fields["kind"] != "text-embedder"]


def model_of(family: dict[str, Any], **fields: Any) -> tuple[Network, Any]:
    """Build a model in float64, and a batch of one text."""
    config = described(SIZES | {"n_kv_heads": 3, "d_ff": 8} | family | fields)
    return built(config), batch_for(config, TARGET, SOURCE)


def largest(found: LogitAttribution) -> float:
    """Return the size of the largest contribution, to which rounding is relative where contributions cancel."""
    return max(abs(found.logit), *(abs(each.value) for each in found.contributions))


@pytest.mark.parametrize("fields", every(6, ONE_ANSWER, long=3), ids=lambda each: f"{each['kind']}, {each.get('norm_placement')}")
def test_contributions_add_up_to_the_logit_and_to_differences(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, batch = built(config), batch_for(config, TARGET, SOURCE)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        for options in ({}, {"symbol": 2, "against": 1}):
            found = logit_attribution(model.to(dtype), batch, **options)
            assert found.total == pytest.approx(found.logit, rel=0, abs=tolerance * largest(found)), (dtype, options)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_classes_of_images_are_explained(pooling: str, placement: str) -> None:
    sizes = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 8, "image_size": 8, "patch_size": 4, "channels": 1, "classes": ("a", "b")}
    model = built(VisionTransformerConfig.model_validate({**sizes, "pooling": pooling, "norm_placement": placement}))
    found = logit_attribution(model, torch.rand(1, 1, 8, 8, dtype=torch.float64), 0, against=1)
    assert found.total == pytest.approx(found.logit, abs=1e-9)
    parts = {each.part: each.value for each in found.contributions}
    assert ("embedding.cls" in parts) == (pooling == "cls") and (parts["embedding.patch"] == 0) == (pooling == "cls")


def normalized(x: Tensor, kind: str, at: Tensor, gamma: Tensor) -> Tensor:
    """Apply the linear part of a norm, whose statistic is that of the vector ``at``."""
    if kind == "rmsnorm":
        return gamma * x / (at.square().mean() + 1e-6).sqrt()
    return gamma * (x - x.mean()) / (at.var(correction=0) + 1e-5).sqrt()


def carried_forward(model: Any, batch: Any, placement: str, kind: str, symbol: int) -> dict[tuple[str, int | None], float]:
    """Carry every vector that is written to the stream forward to the logit, norm by norm, at the last position of a decoder."""
    recorder = ActivationRecorder(["*"])
    model(batch, recorder)
    at = recorder.activations
    parts: dict[tuple[str, int | None], Tensor] = {("embedding.token", None): model.embedding.tokens.weight[4] * model.embedding.scale}
    parts["embedding.position", None] = model.embedding.position(torch.tensor([[3]]))[0, 0]

    def norm(path: str, which: dict[Any, Tensor]) -> dict[Any, Tensor]:
        module, x = model.get_submodule(path), at[f"{path}.x"][0, -1]
        found = {key: normalized(value, kind, x, module.weight) for key, value in which.items()}
        return found if kind == "rmsnorm" else {**found, (f"{path}.bias", None): module.bias}

    for i, block in enumerate(model.decoder.blocks):
        path = f"decoder.blocks.{i}"
        for name, part in (("attn", block.attn), ("ff", block.ff)):
            if name == "attn":
                z = at[f"{path}.attn.z"][0, :, -1]
                weights = part.o.weight.T.reshape(len(z), -1, 12)
                new: dict[tuple[str, int | None], Tensor] = {(f"{path}.attn", h): z[h] @ weights[h] for h in range(len(z))}
                new[f"{path}.attn.o.bias", None] = part.o.bias
            else:
                new = {(f"{path}.ff", None): F.linear(at[f"{path}.ff.hidden"][0, -1], part.down.weight, part.down.bias)}
            if placement == "sandwich":
                new = norm(f"{path}.{name}_residual.norm_out", new)
            parts |= new
            if placement == "post":
                parts = norm(f"{path}.{name}_residual.norm", parts)
    if placement != "post":
        parts = norm("decoder.norm", parts)
    return {key: float(value @ model.unembedding.weight[symbol]) for key, value in parts.items()}


@pytest.mark.parametrize("kind", every(2, ["layernorm", "rmsnorm"]))
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "parallel", "parallel-separate"])
@torch.no_grad()
def test_each_part_contributes_what_it_wrote_to_the_stream(placement: str, kind: str) -> None:
    feed_forward, attention = {"kind": "relu"}, {"output_bias": True}
    fields = {"norm_placement": placement, "norm": kind, "position": "learned", "feed_forward": feed_forward, "attention": attention}
    model, batch = model_of(FAMILIES[3], **fields)
    expected = carried_forward(model, batch, placement, kind, 3)
    found = {(each.part, each.head): each.value for each in logit_attribution(model, batch, 3).contributions}
    assert set(found) - {("unembedding.bias", None)} == set(expected)
    assert all(found[key] == pytest.approx(value, abs=1e-9) for key, value in expected.items())


def test_experts_and_heads_of_cross_attention_are_parts() -> None:
    experts = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 4, "top_k": 2, "n_shared_experts": 1}
    model, batch = model_of(FAMILIES[0], feed_forward=experts, norm_placement="pre")
    found = logit_attribution(model, batch)
    parts = {(each.part, each.head) for each in found.contributions}
    assert {("decoder.blocks.1.cross", head) for head in range(6)} < parts and ("decoder.blocks.0.ff.shared", None) in parts
    assert sum(part.startswith("decoder.blocks.0.ff.experts.") for part, _ in parts) == 2
    assert found.total == pytest.approx(found.logit, abs=1e-9 * largest(found))


def test_what_cannot_be_explained_is_refused() -> None:
    model, batch = model_of(FAMILIES[3])
    with pytest.raises(ConfigError, match="position: expected a position from 0 to 3, found 4"):
        logit_attribution(model, batch, position=4)
    with pytest.raises(ConfigError, match="symbol: expected an index from 0 to 8, found 9"):
        logit_attribution(model, batch, 9)
    with pytest.raises(ConfigError, match="inputs: expected one text or image, found 2"):
        logit_attribution(model, batch_for(model.config))  # type: ignore[arg-type]
    embedder, pairs = model_of(ENCODERS[-1])
    with pytest.raises(ConfigError, match="expected a Transformer with logits per token, text or image, found a model of kind 'text-emb"):
        logit_attribution(embedder, pairs)
