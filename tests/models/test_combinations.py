"""Any combination of components builds, learns, is causal, ignores padding, decodes step by step, and is saved completely."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.models.combinations import (
    ENCODERS,
    FAMILIES,
    SET_ENCODERS,
    SET_TEXTS,
    SET_WRITERS,
    SOURCE,
    TARGET,
    also,
    batch_for,
    choices,
    chosen,
    combinations,
    described,
    noisy,
    passing_first,
    prompt_for,
    recurrent,
    with_tokens,
)
from transom.checkpoints.tensors import load_weights_into, serialize_tensors
from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TextModelConfig, TransformerConfig
from transom.config.model import AnyModel, EncoderConfig, MaskedLMConfig, TextEmbedderConfig
from transom.config.recurrent import RecurrentConfig
from transom.config.schema import allowed_schemas
from transom.config.training import AdamConfig, TrainingConfig
from transom.data.batch import Batch, LanguageBatch, MaskedBatch, PaddedSequences
from transom.data.text.windows import language_batch
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.search.interfaces import StepModel
from transom.inspection.activation_sites import list_sites
from transom.inspection.recompute import recompute_attention_weights
from transom.layers.attention import SupportsAttentionWeights, repeat_kv
from transom.layers.norm import BatchNorm
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters
from transom.tasks.tagging.schema import TokenTaggerConfig
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

REAL = TARGET.segments > 0
FULL, FULL_SOURCE = PaddedSequences.pad([[1, 5, 8, 4], [1, 7, 3, 6]]), PaddedSequences.pad([[3, 4, 5, 6, 2], [7, 2, 8, 3, 2]])
CLOSE = {"rtol": 0, "atol": 1e-10}


def _of_the_lstm_kernel(x: torch.Size, of_x: torch.Size, of_h: torch.Size, *_: Any, **__: Any) -> int:
    """Count the FLOPs of oneDNN's LSTM, which PyTorch's counter does not support: two matrix products per token."""
    return 2 * x[0] * x[1] * (of_x.numel() + of_h.numel())


KERNELS = {torch.ops.aten.mkldnn_rnn_layer: _of_the_lstm_kernel}


def built(config: ModelConfig) -> Network:
    """Build in float64 and randomize all weights, so that none is 0 or 1 by default."""
    torch.manual_seed(1)
    model = build_model(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.mean.normal_(0.0, 0.3)
            module.variance.uniform_(0.5, 2.0)
    return model.double().eval()


def routed_blocks(model: Network) -> tuple[str, ...]:
    """Return the addresses of blocks with a depth router."""
    return tuple(f"{name}." for name, module in model.named_modules() if getattr(module, "depth", None) is not None)


def may_be_idle(model: Network, name: str) -> bool:
    """Return whether a weight may have a zero gradient for a batch.

    A bias of the keys does not change the softmax; no token may be routed to an expert. In a block with a depth router, selected tokens may
    attend to themselves alone under a narrow pattern, and the token that is classified may skip the block.
    """
    if name.endswith((".k.bias", ".k_norm.bias")) or ".experts." in name:
        return True
    if not name.startswith(routed_blocks(model)):
        return False
    assert isinstance(model.config, TransformerConfig)
    alone = model.config.attention.pattern.kind != "full" and ".attn." in name and name.split(".attn.")[1][0] in "qk"
    return alone or getattr(model.config, "pooling", "mean") != "mean"


def may_rest(model: Network, address: str) -> bool:
    """Return whether a site may record nothing: that of an expert, or of a block with a depth router, that no token reaches."""
    return ".experts." in address or (address.startswith(routed_blocks(model)) and not address.endswith(".depth.score"))


@also(SET_WRITERS)
@settings(max_examples=20)
@given(combinations() | recurrent())
@torch.no_grad()
def test_it_looks_back_only_and_ignores_padding(fields: dict[str, Any]) -> None:
    config = described(fields)
    model = built(config)
    whole = model(batch_for(config))
    assert whole.isfinite().all()
    garbage = batch_for(config, noisy(TARGET, 6), noisy(SOURCE, 8))
    assert torch.allclose(model(garbage)[REAL], whole[REAL], **CLOSE)
    tokens = TARGET.tokens.clone()
    tokens[0, 2] = 3
    changed = model(batch_for(config, with_tokens(TARGET, tokens)))
    assert torch.allclose(changed[0, :2], whole[0, :2], **CLOSE)
    mixture = isinstance(config, TransformerConfig) and (config.feed_forward.kind == "moe" or config.depth.kind == "mod")
    if not mixture:  # whose products have as many rows as there are tokens for an expert or a block
        assert torch.equal(changed[0, :2], whole[0, :2])
    assert not torch.allclose(changed[0, 2], whole[0, 2], **CLOSE)


@also(SET_WRITERS, [True, False, True])
@settings(max_examples=20)
@given(combinations() | recurrent(), st.lists(st.booleans(), min_size=3, max_size=3))
@torch.inference_mode()
def test_steps_equal_the_whole_pass_in_the_model_and_in_what_searches(fields: dict[str, Any], cuts: list[bool]) -> None:
    config = described(fields)
    model = built(config)
    whole = model(batch_for(config))
    decoder_backend = build_decoder_backend(model)
    ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [4]
    assert isinstance(model, StepModel)
    for steps in (model, decoder_backend):
        cache = steps.start(steps.encode(prompt_for(config)), 1, 4)
        parts = [steps.step(TARGET.tokens[:, a:b], cache) for a, b in zip([0, *ends], ends, strict=False)]
        assert torch.allclose(torch.cat(parts, 1)[REAL], whole[REAL], **CLOSE)


@also(SET_ENCODERS)
@settings(max_examples=15)
@given(combinations(ENCODERS))
@torch.no_grad()
def test_an_encoder_sees_all_of_its_text_and_no_padding(fields: dict[str, Any]) -> None:
    config = described(passing_first(fields | {"attention": fields["attention"] | {"pattern": "full"}}))
    model = built(config)
    whole = model(batch_for(config))
    real = batch_for(config).loss_mask if isinstance(config, MaskedLMConfig | TokenTaggerConfig) else slice(None)
    assert whole.isfinite().all()
    assert torch.allclose(model(batch_for(config, source=noisy(SOURCE, 8)))[real], whole[real], **CLOSE)
    for place in (0, 4):
        tokens = SOURCE.tokens.clone()
        tokens[0, place] = 7
        changed = model(batch_for(config, source=with_tokens(SOURCE, tokens)))
        of_first = real[0] if isinstance(real, Tensor) else slice(None)
        assert not torch.allclose(changed[0, of_first], whole[0, of_first], **CLOSE)
        assert torch.allclose(changed[1], whole[1], **CLOSE)


@pytest.mark.long
@also(SET_TEXTS)
@settings(max_examples=10)
@given(combinations(FAMILIES + ENCODERS) | recurrent())
def test_it_learns_and_is_counted_right(fields: dict[str, Any]) -> None:
    config = described(fields)
    model = built(config).float().train()
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())
    batch, n_source = batch_for(config), 5 if isinstance(config, EncoderDecoderConfig | EncoderConfig) else 0
    n_target = 5 if isinstance(config, MaskedLMConfig | TokenTaggerConfig) else 1 if isinstance(config, EncoderConfig) else 4
    with FlopCounterMode(display=False, custom_mapping=KERNELS) as counter:
        model(batch_for(config, FULL, FULL_SOURCE))  # some components do not compute all of the padding
    if isinstance(config, TextEmbedderConfig):  # both sides, and the products of their vectors
        expected = sum(count_flops(config, 2, length, 0).forward for length in (5, 4)) + 2 * 12 * 2 * 2
    else:
        expected = count_flops(config, 2, n_source, n_target).forward
    assert expected == counter.get_total_flops()
    stepper = TrainStep(
        model,
        build_optimizer(model, AdamConfig()),
        TrainingConfig(max_grad_norm=None, label_smoothing=0.0),
        torch.float32,
        CrossEntropy(0.0),
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    stepper.step([batch], 3e-3)
    model.eval()  # no dropout, so that the loss must fall
    losses = [stepper.step([batch], 1e-3).loss for _ in range(6)]
    assert losses[-1] < losses[0]
    without = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert all(may_be_idle(model, name) for name in without), "every other weight has a gradient"


@pytest.mark.long
@also(SET_TEXTS)
@settings(max_examples=9)
@given(combinations(FAMILIES + ENCODERS) | recurrent())
@torch.no_grad()
def test_every_site_is_named_and_patterns_are_those_that_were_used(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, recorder, batch = built(config), ActivationRecorder(["*"]), batch_for(config)
    logits = model(batch, recorder)
    assert torch.equal(logits, model(batch))
    known = [site.address for site in list_sites(config)]
    assert [address for address in known if address in recorder.activations or not may_rest(model, address)] == list(recorder.activations)
    attention_contexts = [name for name, module in model.named_modules() if isinstance(module, SupportsAttentionWeights)]
    if isinstance(config, RecurrentConfig):
        assert len(attention_contexts) == (fields.get("attention", "none") != "none")
    else:
        assert len(attention_contexts) == (6 if isinstance(config, EncoderDecoderConfig) else 2)
    for name in attention_contexts:
        if f"{name}.z" not in recorder.activations:
            continue  # no token chose its block
        weights = recompute_attention_weights(model, name, recorder.activations, batch)
        z: Tensor = weights @ repeat_kv(recorder.activations[f"{name}.v"], weights.shape[1])
        assert torch.allclose(z, recorder.activations[f"{name}.z"], **CLOSE)


@pytest.mark.long
@also(SET_TEXTS)
@settings(max_examples=7)
@given(combinations(FAMILIES + ENCODERS) | recurrent())
@torch.no_grad()
def test_it_is_saved_whole(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, other = built(config), build_model(config).double().eval()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        file.write_bytes(serialize_tensors(model.state_dict()))
        load_weights_into(other, file)
    batch = batch_for(config)
    assert torch.equal(model(batch), other(batch))
    assert type(config).model_validate(config.model_dump()) == config


@pytest.mark.parametrize("fields", SET_TEXTS, ids=[f"{i} {fields['kind']}" for i, fields in enumerate(SET_TEXTS)])
@torch.no_grad()
def test_float32_is_near_float64_in_all_elements(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, batch = built(config), batch_for(config)
    exact = model(batch)
    assert (model.float()(batch) - exact).abs().max() <= 1e-5 * exact.abs().max().clamp(min=1.0)


ROWS = [[2, 5, 8, 4], [2, 7], [2, 3, 3, 6, 5]]


def reading(config: TextModelConfig, text: PaddedSequences) -> Batch:
    """Build a batch of one text for a model with logits per token."""
    if isinstance(config, MaskedLMConfig):
        return MaskedBatch(text, text.tokens, text.segments > 0, (0,))
    return LanguageBatch(text, text.tokens, (0,))


@also(fields for fields in SET_WRITERS + SET_ENCODERS if fields["kind"] in ("decoder", "encoder", "recurrent-decoder"))
@settings(max_examples=20)
@given(combinations([*(family for family in FAMILIES if family["kind"] == "decoder"), *ENCODERS[:2]]) | recurrent("recurrent-decoder"))
@torch.no_grad()
def test_packed_documents_are_as_alone(fields: dict[str, Any]) -> None:
    config = described(fields)
    model = built(config)
    tokens = np.array([[token for row in ROWS for token in row]], np.int32)
    packed = language_batch(tokens, tokens, np.zeros(1, np.int64)).decoder_input
    assert packed.segments.max() == 3
    alone = [model(reading(config, PaddedSequences.pad([row])))[0] for row in ROWS]
    assert torch.allclose(model(reading(config, packed))[0], torch.cat(alone), **CLOSE)


TEXTS = [member for member in allowed_schemas(AnyModel) if issubclass(member, TextModelConfig)]
OF_IMAGES = {("pattern", "window-2d")}
OF_LABELS = {("multi_label", True)}
"""Changes the loss and not the network."""

OF_ENCODERS = {("approximation", "linformer"), ("approximation", "nystrom")}


@pytest.mark.parametrize(
    ("rows", "families", "expected"),
    [
        (SET_WRITERS, [kind for kind in TEXTS if not issubclass(kind, EncoderConfig)], OF_IMAGES | OF_ENCODERS),
        (SET_ENCODERS, [kind for kind in TEXTS if issubclass(kind, EncoderConfig)], OF_IMAGES | OF_LABELS),
        (SET_TEXTS, TEXTS, OF_IMAGES | OF_LABELS),
    ],
    ids=["writers", "encoders", "texts"],
)
def test_every_choice_that_a_schema_has_is_in_the_set_combinations(
    rows: list[dict[str, Any]], families: list[type[TextModelConfig]], expected: set[tuple[str, Any]]
) -> None:
    configs = [described(fields) for fields in rows]
    assert {type(config) for config in configs} == set(families)
    assert choices(*families) - set().union(*map(chosen, configs)) == expected
