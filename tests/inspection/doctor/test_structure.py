"""The checks of structure, decoding and numbers pass healthy models of all families, and catch one broken by hand each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import transom
from tests.inspection.doctor.samples import FAMILIES, HEALTHY, built, checkup_of, found_by
from tests.tiers import every
from transom.data.batch import PaddedSequences
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.inspection.doctor import decoding
from transom.inspection.doctor.checks import CHECKS, run_checks
from transom.inspection.doctor.checkup import Checkup
from transom.layers.attention import Attention
from transom.layers.cache import KeyValues, KVCache
from transom.layers.context import AttentionContext
from transom.layers.masks.mask_rules import SAME_SEGMENT
from transom.models.base import Network
from transom.planning.precision import Precision

PREFIX = FAMILIES["decoder"] | {"mask": "prefix-lm"}


@pytest.mark.parametrize("name", every(9, HEALTHY))
def test_healthy_models_have_no_problem(name: str) -> None:
    checkup = checkup_of(HEALTHY[name])
    found = run_checks(checkup, [check for check in CHECKS if check != "speed"], seconds=1e6)
    assert not [each for each in found if each.verdict == "problem"]
    assert {each.name for each in found if each.verdict == "ok"} >= {"finite", "batch", "dtype", "fp16-range"}
    without_data = run_checks(Checkup(checkup.model), ["causality", "padding", "batch", "cache", "certificates", "loss"], seconds=1e6)
    assert not [each for each in without_data if each.verdict == "problem"]
    assert next(each.message for each in without_data if each.name == "loss") == "no validation data were given"


IDLE = ("attention", "experts")
"""Checks that warn of some models with random weights: of heads that attend uniformly, and experts that get no token."""


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in CHECKS if name not in ("loss", "training", "generalization", "calibration", "speed")])
def test_each_check_passes_twenty_healthy_models(name: str) -> None:
    """Those of learning: ``test_learning.py``."""
    models = [FAMILIES["seq2seq"]] if name == "decoder" else list(HEALTHY.values())
    n_ok = 0
    for seed in range(20):
        for fields in models:
            torch.manual_seed(seed)
            found = found_by(name, checkup_of(transom.build(fields).eval()))
            assert found.verdict in ("ok", "not applicable") or (name in IDLE and found.verdict == "warning"), found
            n_ok += found.verdict == "ok"
        if n_ok >= 20:
            return
    raise AssertionError(f"{name} passes {n_ok} models only")


def test_there_are_twenty_healthy_models_of_all_families() -> None:
    kinds = {fields["kind"] for fields in HEALTHY.values()}
    families = {"decoder", "seq2seq", "encoder", "text-classifier", "token-tagger", "text-embedder"}
    assert len(HEALTHY) >= 20
    assert kinds >= families | {"recurrent-seq2seq", "recurrent-decoder", "vision-transformer", "convolutional"}


def one_segment(model: Any) -> None:
    """Let a model take padding and all documents of a row for one text."""
    context = model.context
    model.context = lambda text, *rest, **options: context(replace(text, segments=torch.ones_like(text.segments)), *rest, **options)


def one_document(model: Any) -> None:
    """Let a model take all documents of a row for one text; padding is still hidden."""
    context = model.context
    model.context = lambda text, *rest, **options: context(replace(text, segments=(text.segments > 0).long()), *rest, **options)


def see_all(model: Any) -> None:
    """Replace the causal mask of a decoder by one that hides other documents only."""
    rules = "target_mask_rules" if hasattr(model, "target_mask_rules") else "mask_rules"
    setattr(model, rules, [SAME_SEGMENT])


def leak_a_little(model: Network) -> None:
    """Add a thousandth of the mean of all positions to the last hidden states."""
    model.get_submodule("decoder").register_forward_hook(lambda module, given, x: x + 1e-3 * x.mean(1, keepdim=True))


def mix_rows(model: Network) -> None:
    """Subtract a hundredth of the mean of the batch from the last hidden states."""
    stack = "encoder" if hasattr(model, "encoder") else "stem"
    model.get_submodule(stack).register_forward_hook(lambda module, given, x: x - 0.01 * x.mean(0, keepdim=True))


def poison(model: Network) -> None:
    next(iter(model.parameters())).data.view(-1)[3] = torch.nan


def overflow(model: Network) -> None:
    """Make activations infinite although all weights are finite."""
    model.unembedding.weight.data *= 1e30
    model.get_submodule("decoder.norm").weight.data *= 1e10  # type: ignore[union-attr, operator]


def offset(model: Network) -> None:
    """Add 3,000 to all logits, which leaves bfloat16 no digits for their differences."""
    assert model.unembedding.bias is not None
    model.unembedding.bias.data += 3000


def enlarge(model: Network) -> None:
    model.get_submodule("embedding.tokens").weight.data *= 1e5  # type: ignore[union-attr, operator]


BROKEN: dict[str, tuple[str, dict[str, Any], Callable[[Network], None]]] = {
    "NaN weight": ("finite", FAMILIES["decoder"], poison),
    "infinite logits": ("finite", FAMILIES["decoder"] | {"tie_embeddings": False}, overflow),
    "mask of a language model": ("causality", FAMILIES["decoder"], see_all),
    "mask of a prefix-LM": ("causality", PREFIX, see_all),
    "mask of a translator": ("causality", FAMILIES["seq2seq"], see_all),
    "small leak": ("causality", FAMILIES["decoder"], leak_a_little),
    "documents": ("packing", FAMILIES["decoder"], one_document),
    "documents of an encoder": ("packing", FAMILIES["encoder"], one_document),
    "padding of a classifier": ("padding", FAMILIES["classifier"], one_segment),
    "padding of a language model": ("padding", FAMILIES["decoder"], one_segment),
    "batch of texts": ("batch", FAMILIES["classifier"], mix_rows),
    "batch of images": ("batch", FAMILIES["vit"], mix_rows),
    "batch of a convolutional network": ("batch", FAMILIES["convolutional"], mix_rows),
    "logits with an offset": ("dtype", FAMILIES["decoder"] | {"head_bias": True, "tie_embeddings": False}, offset),
    "large activations": ("fp16-range", FAMILIES["decoder"], enlarge),
}


@pytest.mark.parametrize("case", every(2, BROKEN))
def test_a_broken_model_is_caught(case: str) -> None:
    name, fields, damage = BROKEN[case]
    model = built(fields)
    assert found_by(name, checkup_of(model)).verdict == "ok"
    damage(model)
    for checkup in (checkup_of(model), Checkup(model)):
        found = found_by(name, checkup)
        assert found.verdict == ("warning" if name == "fp16-range" else "problem"), found
        assert found.advice and found.value is not None and found.bound is not None
        assert not found.value <= found.bound


def forget_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the oldest token of the cache once there are four."""

    def read(cache: Any) -> KeyValues:
        first = 1 if cache.length > 3 else 0
        return KeyValues(cache._k[:, :, first : cache.length], cache._v[:, :, first : cache.length])

    monkeypatch.setattr(KVCache, "read", read)


def do_not_reorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "reorder", lambda cache, rows: None)


@pytest.mark.parametrize("damage", [forget_the_first_token, do_not_reorder])
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_a_broken_cache_is_caught(kind: str, damage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch)
    found = found_by("cache", checkup_of(FAMILIES[kind]))
    assert found.verdict == "problem" and (found.value or 0) > 1e-3


def use_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the decoder compute in float32 on every machine."""
    monkeypatch.setattr(decoding, "choose_precision", lambda name, device: Precision("fp32", ""))


def decode_with_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the decoder have a row of weights that are 0."""
    other = built(FAMILIES["seq2seq"])
    other.get_parameter("decoder.blocks.0.ff.down.weight").data[0] = 0
    monkeypatch.setattr(decoding, "build_decoder_backend", lambda model: FusedSeq2Seq(other))  # type: ignore[arg-type]


def test_a_broken_decoder_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    use_float32(monkeypatch)
    checkup = checkup_of(FAMILIES["seq2seq"])
    found = found_by("decoder", checkup)
    assert found.verdict == "ok" and found.message.startswith("FusedSeq2Seq in float32 gives the float64 logits within")
    decode_with_other_weights(monkeypatch)
    assert found_by("decoder", checkup).verdict == "problem"


def attend_without_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel of attention forget the mask, which the recomputed weights have."""
    attend = Attention.attend

    def unmasked(layer: Attention, q: Any, memory: Any, ctx: AttentionContext) -> Any:
        return attend(layer, q, memory, replace(ctx, mask=None))

    monkeypatch.setattr(Attention, "attend", unmasked)


def test_a_kernel_that_computes_other_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    checkup = checkup_of(FAMILIES["decoder"])
    assert found_by("certificates", checkup_of(checkup.model)).verdict == "ok"
    attend_without_mask(monkeypatch)
    found = found_by("certificates", checkup)
    assert found.verdict == "problem" and "the kernel applied no mask" in found.advice


def test_bounds_of_rounding_are_eight_times_the_measured_error() -> None:
    checkup = checkup_of(FAMILIES["decoder"])
    batch, model = checkup.probe, checkup.model
    wide = built(FAMILIES["decoder"]).double()
    mask = batch.decoder_input.segments > 0  # type: ignore[union-attr]
    with torch.no_grad():
        exact, found = wide(batch)[mask], model(batch)[mask]
    expected = 8 * (found - exact).abs().max() + 16 * 2**-23 * exact.abs().max()
    assert checkup.bound == pytest.approx(float(expected), rel=1e-9)
    assert checkup.bound < 1e-4


def test_nothing_is_changed_and_nothing_is_left_in_training_mode() -> None:
    model = built(FAMILIES["decoder"]).train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    run_checks(checkup_of(model), [name for name in CHECKS if name != "speed"], seconds=1e6)
    assert model.training and all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not [module for module in model.modules() if isinstance(module, nn.Module) and module._forward_hooks]


def test_texts_of_two_tokens_leave_out_what_needs_more() -> None:
    short = PaddedSequences.pad([[2, 5], [2, 6]])
    batch = replace(checkup_of(FAMILIES["decoder"]).batches[0], decoder_input=short, labels=short.tokens)  # type: ignore[type-var]
    checkup = Checkup(built(FAMILIES["decoder"]), [batch])
    for name in ("causality", "cache"):
        assert found_by(name, checkup).verdict == "not applicable"
