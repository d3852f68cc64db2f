"""The checks of dead parts count what was broken by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.inspection.doctor.samples import FAMILIES, built, checkup_of, data_for, found_by
from transom.inspection.doctor.activity import measure_activity
from transom.inspection.doctor.checkup import Checkup, TrainingTokens
from transom.inspection.doctor.finding import Verdict
from transom.layers.observe import ActivationRecorder

EXPERTS: dict[str, Any] = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 4, "top_k": 1, "norm_topk_prob": False}
MIXTURE = FAMILIES["decoder"] | {"feed_forward": EXPERTS | {"load_balancing": "bias"}, "n_layers": 1}
RELU = FAMILIES["encoder"] | {"feed_forward": "relu"}


def weight(model: Any, name: str) -> torch.Tensor:
    """Return a parameter or buffer, to be changed in place."""
    found: torch.Tensor = model.state_dict()[name]
    return found


def zero_head(model: Any) -> None:
    weight(model, "decoder.blocks.1.attn.o.weight")[:, :8] = 0


def zero_layer(model: Any) -> None:
    for block in range(2):
        weight(model, f"decoder.blocks.{block}.attn.o.weight").zero_()


def zero_queries(model: Any) -> None:
    for block in range(2):
        weight(model, f"encoder.blocks.{block}.attn.q.weight").zero_()
        weight(model, f"encoder.blocks.{block}.attn.q.bias").zero_()


def same_large_query(model: Any) -> None:
    """Give all queries of the first block the same large vector, so that one key wins for all of them."""
    weight(model, "encoder.blocks.0.attn.q.weight").zero_()
    weight(model, "encoder.blocks.0.attn.q.bias").fill_(300.0)


def kill(n: int) -> Callable[[Any], None]:
    def damage(model: Any) -> None:
        for block in range(2):
            weight(model, f"encoder.blocks.{block}.ff.up.bias")[:n] = -100

    return damage


def idle_experts(n: int) -> Callable[[Any], None]:
    def damage(model: Any) -> None:
        weight(model, "decoder.blocks.0.ff.bias")[:n] = -100

    return damage


def collapse(model: Any) -> None:
    table = weight(model, "embedding.tokens.weight")
    table.copy_(table[:1] + 1e-3 * table)


def repeat_rows(model: Any) -> None:
    weight(model, "embedding.tokens.weight")[4:8] = 0.25


def kill_maps(model: Any) -> None:
    """Make half of the feature maps of the last stage 0 by weights and biases of the last convolution."""
    stage = model.stem.stages[-1]
    for name, x in stage.named_parameters():
        if x.ndim == 1:
            x.data[: len(x) // 2] = -1e3 if name.endswith("bias") else 0


CONVOLUTIONAL = FAMILIES["convolutional"]

BROKEN: dict[str, tuple[str, dict[str, Any], Callable[[Any], None], Verdict, float]] = {
    "one head": ("dead-heads", FAMILIES["decoder"], zero_head, "warning", 1 / 4),
    "all heads": ("dead-heads", FAMILIES["decoder"], zero_layer, "problem", 1.0),
    "uniform attention": ("attention", FAMILIES["encoder"] | {"position": "learned"}, zero_queries, "problem", 1.0),
    "one token": ("attention", FAMILIES["encoder"] | {"position": "learned"}, same_large_query, "warning", 1 / 2),
    "some neurons": ("neurons", RELU, kill(12), "warning", 12 / 32),
    "all neurons": ("neurons", RELU, kill(32), "problem", 1.0),
    "feature maps": ("neurons", CONVOLUTIONAL, kill_maps, "warning", 1 / 4),
    "one expert": ("experts", MIXTURE, idle_experts(1), "warning", 1 / 4),
    "three experts": ("experts", MIXTURE, idle_experts(3), "problem", 3 / 4),
    "equal embeddings": ("embeddings", FAMILIES["encoder"], collapse, "problem", 0.95),
    "repeated embeddings": ("embeddings", FAMILIES["encoder"], repeat_rows, "warning", 3),
}


@pytest.mark.parametrize("case", BROKEN)
def test_dead_parts_are_counted(case: str) -> None:
    name, fields, damage, verdict, share = BROKEN[case]
    if "position" in fields:
        fields = fields | {"attention": {"qkv_bias": True}}
    model = built(fields)
    before = found_by(name, checkup_of(model))
    assert before.verdict == "ok", before
    damage(model)
    found = found_by(name, checkup_of(model))
    assert found.verdict == verdict and found.advice, found
    if name == "experts":
        assert found.message.startswith(f"{round(4 * share)} of 4 experts get no token")
    elif name in ("dead-heads", "attention") or case in ("all neurons", "repeated embeddings"):
        assert found.value == pytest.approx(share)
    else:
        assert found.value is not None and found.value >= share


def test_activity_is_that_of_whole_passes() -> None:
    """The largest hidden units and head outputs over all batches, by hand in float64."""
    model = built(FAMILIES["decoder"])
    activity = measure_activity(checkup_of(model))
    wide = built(FAMILIES["decoder"]).double()
    hidden, heads = list[torch.Tensor](), list[torch.Tensor]()
    for batch in data_for(model):
        recorder = ActivationRecorder(["*.ff.hidden", "*.attn.z", "*.resid_pre"])
        with torch.no_grad():
            wide(batch, recorder)
        mask, site = batch.decoder_input.segments > 0, recorder.activations  # type: ignore[attr-defined]
        hidden.append(site["decoder.blocks.0.ff.hidden"][mask].abs().amax(0))
        w = wide.get_parameter("decoder.blocks.0.attn.o.weight")
        out = torch.stack([site["decoder.blocks.0.attn.z"][:, h] @ w[:, 8 * h : 8 * h + 8].T for h in range(2)], 1).norm(dim=-1)
        scale = site["decoder.blocks.0.resid_pre"].square().sum(-1).mean().sqrt()
        heads.append((out * mask[:, None]).amax((0, 2)) / scale)
    expected = torch.stack(hidden).amax(0)
    assert torch.allclose(activity.neurons["decoder.blocks.0.ff.hidden"].double(), expected, rtol=1e-4)
    assert torch.allclose(activity.heads["decoder.blocks.0.attn"].double(), torch.stack(heads).amax(0).detach(), rtol=1e-4)
    assert activity.n_tokens == sum(batch.n_target_tokens for batch in data_for(model))


def test_tokens_that_the_training_data_do_not_have_are_counted() -> None:
    counts = torch.zeros(11, dtype=torch.long)
    counts[[4, 5, 6]] = 7
    for is_whole, verdict in ((True, "warning"), (False, "ok")):
        tokens = TrainingTokens({"source": counts}, is_whole)
        found = found_by("embeddings", checkup_of(FAMILIES["encoder"], training_tokens=tokens))
        assert found.verdict == verdict
        assert ("4 of 7 tokens are not in the training data" in found.message) == is_whole


def test_without_data_or_with_few_tokens_dead_parts_are_not_judged() -> None:
    model = built(FAMILIES["decoder"])
    few = data_for(model)[1:]
    for name in ("dead-heads", "attention", "neurons"):
        assert found_by(name, Checkup(model, no_data="no files")).message == "no files"
    assert found_by("neurons", Checkup(model, few)).verdict == "ok"
    assert found_by("experts", checkup_of(model)).message == "the model has no mixture of experts"
