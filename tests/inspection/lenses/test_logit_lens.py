"""The logit lens reads each stream through the final norm and the output layer, for a few positions at a time."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.models.combinations import ENCODERS, FAMILIES, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.inspection.lenses import logit_lens as module
from transom.inspection.lenses.logit_lens import logit_lens
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network


def model_of(family: dict[str, Any], **fields: Any) -> tuple[Network, Any]:
    config = described(SIZES | {"d_ff": 8, "norm": "layernorm", "norm_placement": "pre"} | family | fields)
    return built(config), batch_for(config)


def streams_of(model: Any, batch: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the recorded streams, the embedded input first, and the logits."""
    recorder = ActivationRecorder(["*"])
    logits = model(batch, recorder)
    stack = "decoder" if hasattr(model, "decoder") else "encoder"
    first = "target_embedding" if hasattr(model, "target_embedding") else "embedding"
    return [recorder.activations[f"{first}.resid"], *(recorder.activations[f"{stack}.blocks.{i}.resid_post"] for i in range(2))], logits


def final_norm(model: Any, x: torch.Tensor) -> torch.Tensor:
    norm = getattr(model, "decoder" if hasattr(model, "decoder") else "encoder").norm
    return F.layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, 1e-5)


def head(model: Any, batch: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute the logits of a stream in plain PyTorch."""
    h = final_norm(model, x)
    kind = model.config.kind
    if kind == "encoder":
        norm = model.transform_norm
        h = F.layer_norm(F.gelu(h @ model.transform.weight.T + model.transform.bias), (12,), norm.weight, norm.bias, 1e-5)
    if kind == "text-classifier":
        mean = torch.stack([row[segments > 0].mean(0) for row, segments in zip(h, batch.source.segments, strict=True)])
        pooled = h[:, 0] if model.config.pooling == "cls" else mean
        h = torch.tanh(pooled @ model.pooler.weight.T + model.pooler.bias)[:, None]
    logits: torch.Tensor = F.linear(h, model.unembedding.weight, model.unembedding.bias)
    return logits


@pytest.mark.parametrize("family", every(2, [FAMILIES[1], FAMILIES[3], ENCODERS[0], ENCODERS[2], ENCODERS[3], ENCODERS[4]]), ids=str)
@torch.no_grad()
def test_probabilities_are_those_of_each_stream(family: dict[str, Any]) -> None:
    model, batch = model_of(family)
    streams, logits = streams_of(model, batch)
    found = logit_lens(model, batch, top=3)
    own = logits if logits.ndim == 3 else logits[:, None]
    assert torch.equal(found.answers, own.argmax(-1)) and len(found.streams) == 3
    for number, x in enumerate(streams):
        p = head(model, batch, x).softmax(-1)
        assert torch.allclose(found.top_probs[number], p.sort(-1, descending=True).values[..., :3], atol=1e-12)
        assert torch.allclose(p.gather(-1, found.top_symbols[number]), found.top_probs[number], atol=1e-12)
        of_answer = p.gather(-1, found.answers[..., None])
        assert torch.allclose(found.answer_probs[number], of_answer[..., 0], atol=1e-12)
        assert torch.equal(found.answer_ranks[number], 1 + (p > of_answer).sum(-1))
        kl = F.kl_div(p.log(), own.log_softmax(-1), reduction="none", log_target=True).sum(-1)
        assert torch.allclose(found.kl[number], kl.clamp_min(0), atol=1e-10)
    assert (found.answer_ranks[-1] == 1).all() and (found.kl[-1] < 1e-10).all()


@torch.no_grad()
def test_images_are_read_through_their_pooled_head() -> None:
    sizes = {"d_model": 12, "n_layers": 2, "n_heads": 2, "d_ff": 8, "image_size": 8, "patch_size": 4, "channels": 1, "classes": ("a", "b")}
    for pooling in ("cls", "mean"):
        model: Any = built(VisionTransformerConfig.model_validate({**sizes, "pooling": pooling}))
        pixels = torch.rand(2, 1, 8, 8, dtype=torch.float64)
        found, (streams, _) = logit_lens(model, pixels), streams_of(model, model.as_batch(pixels))
        h = final_norm(model, streams[1])
        pooled = h[:, 0] if pooling == "cls" else h.mean(1)
        p = F.linear(pooled, model.unembedding.weight, model.unembedding.bias).softmax(-1)
        assert found.positions == [0] and torch.allclose(found.top_probs[1, :, 0], p.sort(-1, descending=True).values, atol=1e-12)


def test_a_chosen_answer_and_positions_and_depth_routing() -> None:
    model, batch = model_of(FAMILIES[3], depth={"kind": "mod", "capacity": 0.5, "every": 2})
    answers = torch.full((2, 2), 7)
    found, whole = logit_lens(model, batch, positions=[3, 0], answers=answers), logit_lens(model, batch, answers=torch.full((2, 4), 7))
    assert found.positions == [3, 0] and torch.equal(found.answers, answers)
    assert torch.allclose(found.answer_probs, whole.answer_probs[..., [3, 0]])
    assert (whole.kl[-1] < 1e-10).all(), "the last stream gives the model's own distribution"


def test_few_logits_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(FAMILIES[3])
    whole, sizes = logit_lens(model, batch), list[int]()
    monkeypatch.setattr(module, "MAX_LOGITS", 2 * 9 * 2)  # two positions of two texts
    model.unembedding.register_forward_hook(lambda _, __, logits: sizes.append(logits.numel()))
    found = logit_lens(model, batch)
    own, *read = sizes
    assert own == 2 * 4 * 9 and len(read) == 6 and max(read) == 2 * 2 * 9
    assert all(torch.allclose(a, b) for a, b in zip(found[2:], whole[2:], strict=True))


def test_models_without_a_residual_stream_are_refused() -> None:
    config = described({"kind": "recurrent-decoder", "vocab_size": 9, "max_seq_len": 16, "d_model": 12, "n_layers": 2, "cell": "lstm"})
    with pytest.raises(ConfigError, match="expected a Transformer with logits per token, text or image, found a model of kind 'recurrent"):
        logit_lens(built(config), batch_for(config))
    model, batch = model_of(FAMILIES[3])
    with pytest.raises(ConfigError, match="positions: expected positions from 0 to 3, found 9"):
        logit_lens(model, batch, positions=[9])
