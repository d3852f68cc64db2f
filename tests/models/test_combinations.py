"""Whatever bricks are combined: the model builds, learns, looks back only, ignores padding, decodes step by step, and is saved whole."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.models.combinations import bricks
from transom.config.model import Seq2Seq
from transom.config.training import Adam, Training
from transom.decoding.flat import searcher_of
from transom.inputs.batch import Sequences, TranslationBatch
from transom.inspection.names import Recorder, sites
from transom.inspection.recompute import attention_pattern
from transom.layers.attention import Attention, per_query_head
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters
from transom.training.optimizer import build_optimizer
from transom.training.step import Stepper
from transom.weights.tensors import load_into, pack

VOCAB = 9
LAYERS = {"n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
TARGET = Sequences.pad([[1, 5, 8, 4], [1, 7]])
PAIRS = TranslationBatch(Sequences.pad([[3, 4, 5, 6, 2], [7, 2]]), TARGET, torch.tensor([[5, 8, 4, 2], [7, 2, 0, 0]]), (0, 1))
REAL = TARGET.segments > 0
CLOSE = {"rtol": 0, "atol": 1e-10}

TIES = st.sampled_from(["all", "decoder", "none"])


def described(shared: dict[str, Any], tie: str) -> Seq2Seq:
    """Check a combination against the schema."""
    return Seq2Seq.model_validate(shared | LAYERS | {"tie": tie})


def built(config: Seq2Seq) -> Seq2SeqTransformer:
    """Build in float64 with weights of which none is 0 or 1 by default."""
    torch.manual_seed(1)
    model = build_model(config)
    assert isinstance(model, Seq2SeqTransformer)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    return model.double().eval()


def noisy(side: Sequences, token: int) -> Sequences:
    """Put another token into the padding."""
    return Sequences(torch.where(side.segments > 0, side.tokens, token), side.positions, side.segments, side.lengths)


@settings(max_examples=30)
@given(bricks(), TIES)
@torch.no_grad()
def test_it_looks_back_only_and_ignores_padding(shared: dict[str, Any], tie: str) -> None:
    config = described(shared, tie)
    model = built(config)
    whole = model(PAIRS)
    assert whole.isfinite().all()
    garbage = TranslationBatch(noisy(PAIRS.source, 8), noisy(TARGET, 6), PAIRS.labels, (0, 1))
    assert torch.allclose(model(garbage)[REAL], whole[REAL], **CLOSE)
    tokens = TARGET.tokens.clone()
    tokens[0, 2] = 3
    changed = model(TranslationBatch(PAIRS.source, Sequences(tokens, TARGET.positions, TARGET.segments, TARGET.lengths), tokens, (0, 1)))
    assert torch.equal(changed[0, :2], whole[0, :2])
    assert not torch.allclose(changed[0, 2], whole[0, 2])


@settings(max_examples=30)
@given(bricks(), TIES, st.lists(st.booleans(), min_size=3, max_size=3))
@torch.inference_mode()
def test_steps_equal_the_whole_pass_in_the_model_and_in_what_searches(shared: dict[str, Any], tie: str, cuts: list[bool]) -> None:
    config = described(shared, tie)
    model = built(config)
    whole = model(PAIRS)
    searcher = searcher_of(model)
    ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [4]
    for steps in (model, searcher):
        cache = steps.start(steps.encode(PAIRS.source), 1, 4)
        parts = [steps.step(TARGET.tokens[:, a:b], cache) for a, b in zip([0, *ends], ends, strict=False)]
        assert torch.allclose(torch.cat(parts, 1)[REAL], whole[REAL], **CLOSE)


@settings(max_examples=15)
@given(bricks(), TIES)
def test_it_learns_and_is_counted_right(shared: dict[str, Any], tie: str) -> None:
    config = described(shared, tie)
    model = built(config).float().train()
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(PAIRS)
    assert count_flops(config, 2, 5, 4).forward == counter.get_total_flops()
    stepper = Stepper(model, build_optimizer(model, Adam()), Training(clip_norm=None, label_smoothing=0.0), torch.float32)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    stepper.step([PAIRS], 3e-3)
    model.eval()  # no dropout, so that the loss must fall
    losses = [stepper.step([PAIRS], 1e-3).loss for _ in range(6)]
    assert losses[-1] < losses[0]
    without = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert all(name.endswith(".k.bias") for name in without), (
        "every weight has a part in it, but that a bias of all keys changes no softmax"
    )


@settings(max_examples=12)
@given(bricks(), TIES)
@torch.no_grad()
def test_every_site_is_named_and_patterns_are_those_that_were_used(shared: dict[str, Any], tie: str) -> None:
    config = described(shared, tie)
    model, recorder = built(config), Recorder(["*"])
    logits = model(PAIRS, recorder.taps)
    assert torch.equal(logits, model(PAIRS))
    assert [site.address for site in sites(config)] == list(recorder.kept)
    attentions = [name for name, module in model.named_modules() if isinstance(module, Attention)]
    assert len(attentions) == 6
    for name in attentions:
        weights = attention_pattern(model, name, recorder.kept, PAIRS)
        z: Tensor = weights @ per_query_head(recorder.kept[f"{name}.v"], config.n_heads)
        assert torch.allclose(z, recorder.kept[f"{name}.z"], **CLOSE)


@settings(max_examples=10)
@given(bricks(), TIES)
@torch.no_grad()
def test_it_is_saved_whole(shared: dict[str, Any], tie: str) -> None:
    config = described(shared, tie)
    model, other = built(config), build_model(config).double().eval()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        file.write_bytes(pack(model.state_dict()))
        load_into(other, file)
    assert torch.equal(model(PAIRS), other(PAIRS))
    assert Seq2Seq.model_validate(config.model_dump()) == config
