"""The fused encoder gives the outputs of the encoder for padded texts and images; unsupported models run unchanged."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from tests.kernels.test_native_decoder import needs_library
from transom.config.data import TokenizerConfig
from transom.config.model import AnyModel
from transom.data.batch import ImageBatch, LabeledTextBatch, MaskedBatch, PaddedSequences
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.backends import native_blocks
from transom.decoding.backends.decoder_backend import build_encoder_backend
from transom.decoding.backends.fused_inference import FusedStack
from transom.decoding.backends.native_blocks import Int8Stack
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.errors import ConfigError
from transom.kernels.native_library import load_native_library
from transom.models.build import build_model
from transom.planning.precision import num_threads_set_to

SIZES: dict[str, Any] = {"d_model": 32, "n_layers": 3, "n_heads": 2, "d_ff": 48, "attention_dropout": 0.0}
TEXT: dict[str, Any] = SIZES | {"vocab_size": 40, "max_seq_len": 16}
CLASSES = ("a", "b", "c")
KINDS: list[dict[str, Any]] = [
    TEXT | {"kind": "encoder"},
    TEXT | {"kind": "text-classifier", "classes": CLASSES},
    SIZES | {"kind": "vision-transformer", "classes": CLASSES, "image_size": 8, "patch_size": 2, "channels": 1},
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_placement": "post", "feed_forward": {"kind": "gelu"}},
    {"norm_placement": "pre", "feed_forward": {"kind": "gelu-tanh"}, "position": {"kind": "learned"}},
    {"feed_forward": {"kind": "silu", "bias": False}, "attention": {"qkv_bias": False}, "d_value": 8, "norm": {"kind": "none"}},
    {"feed_forward": {"kind": "relu"}, "norm": {"kind": "layernorm", "bias": False}},
]
PARALLEL: list[dict[str, Any]] = [{"norm_placement": placement} for placement in ("parallel", "parallel-separate")]


def made(fields: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    model = build_model(TypeAdapter(AnyModel).validate_python(fields))
    with torch.no_grad():
        for matrix in (p for p in model.get_submodule("encoder").parameters() if p.dim() == 2):
            matrix *= 2
    return model.double().eval()


def asked(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    if kind == "vision-transformer":
        return ImageBatch(
            torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype), torch.zeros(5).long(), tuple(range(5))
        )
    texts = PaddedSequences.pad([[2, 9, 10, 11, 12, 8, 7], [2, 5], [2, 30, 31, 32]])
    if kind == "encoder":
        return MaskedBatch(texts, texts.tokens, texts.tokens > 0, (0, 1, 2))
    return LabeledTextBatch(texts, torch.zeros(3).long(), (0, 1, 2))


def real(logits: torch.Tensor, kind: str) -> torch.Tensor:
    return logits[asked(kind).source.segments > 0] if kind == "encoder" else logits


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("fields", VARIANTS)
@torch.inference_mode()
def test_a_reader_answers_as_its_model(kind: dict[str, Any], fields: dict[str, Any]) -> None:
    model, name = made(kind | fields), kind["kind"]
    encoder_backend = build_encoder_backend(model)
    assert isinstance(encoder_backend.get_submodule("encoder"), FusedStack) and not isinstance(model.encoder, FusedStack)
    expected = real(model(asked(name)), name)
    assert torch.allclose(real(encoder_backend(asked(name)), name), expected, rtol=0, atol=1e-10)
    assert expected.std() > 1e-3, "the answers differ"
    short = model.bfloat16()
    theirs, ours = (real(each(asked(name, torch.bfloat16)), name).double() for each in (short, build_encoder_backend(short)))
    assert (ours - expected).norm() < 2 * (theirs - expected).norm() + 1e-3 * expected.norm()


@needs_library
@pytest.mark.kernels
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("fields", VARIANTS)
@torch.inference_mode()
def test_8_bits_are_near(kind: dict[str, Any], fields: dict[str, Any]) -> None:
    model, name = made(kind | fields), kind["kind"]
    expected = real(model(asked(name)), name)
    for dtype in (torch.float32, torch.bfloat16):
        found = real(build_encoder_backend(model.to(dtype), int8=True)(asked(name, dtype)), name).double()
        assert 1e-3 < (found - expected).norm() / expected.norm() < 0.1


@needs_library
@pytest.mark.kernels
@torch.inference_mode()
def test_8_bits_of_a_text_are_the_same_beside_others_and_by_any_number_of_threads() -> None:
    reader = build_encoder_backend(made(KINDS[1]).float(), int8=True)
    texts = [[2, *(3 + (i * j) % 37 for j in range(1, 16))] for i in range(1, 41)]  # 640 tokens: several chunks per thread
    before, found = torch.get_num_threads(), {}
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            for first, last in ((0, 40), (7, 8)):
                batch = LabeledTextBatch(
                    PaddedSequences.pad(texts[first:last]), torch.zeros(last - first).long(), tuple(range(last - first))
                )
                found[n_threads, first] = reader(batch)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[2, 0], found[1, 0]) and torch.equal(found[3, 0], found[1, 0])
    assert torch.allclose(found[3, 7], found[1, 0][7:8], rtol=0, atol=1e-5), "attention of one text is PyTorch's, and rounds otherwise"


def biases(kind: str, rows: int, heads: int, length: int) -> torch.Tensor | None:
    """Return what is added to attention scores: nothing, hidden keys at the end of sequences, hidden segments, or a number per distance."""
    if kind == "none":
        return None
    lengths = torch.arange(rows) % length + 1
    if kind == "padding":
        return torch.zeros(rows, 1, 1, length).masked_fill_(torch.arange(length) >= lengths[:, None, None, None], -torch.inf)
    if kind == "segments":
        segments = torch.arange(length) >= lengths[:, None]
        return torch.zeros(rows, 1, length, length).masked_fill_(segments[:, None, :, None] != segments[:, None, None], -torch.inf)
    return torch.randn(1, heads, length, length)


def native_stack() -> Int8Stack:
    library = load_native_library().library
    assert library is not None
    return Int8Stack(library, made(KINDS[0] | {"d_model": 40, "n_heads": 2, "d_head": 16, "d_value": 32}).float().encoder)


@needs_library
@pytest.mark.kernels
@pytest.mark.parametrize("bias", ["none", "padding", "segments", "relative"])
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (9, 1), (5, 7), (13, 25), (4, 65), (3, 97), (2, 210)])
@torch.inference_mode()
def test_sequences_one_after_another_give_what_chunks_of_rows_do(
    rows: int, length: int, bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32; int8 would round a number that differs in its last bit to another step."""
    packer = native_blocks.BlockPacker
    monkeypatch.setattr(native_blocks, "BlockPacker", lambda library, _: packer(library, "fp32"))
    monkeypatch.setattr(native_blocks, "WEIGHT_TYPES", {"int8": native_blocks.WEIGHT_TYPES["fp32"]})
    stack, x, added = native_stack(), torch.randn(rows, length, 40), biases(bias, rows, 2, length)
    for n_threads in (1, 3):
        with num_threads_set_to(n_threads):
            monkeypatch.setattr(native_blocks, "MIN_SEQUENCES", 10**9)
            expected = stack.read(x, added)
            monkeypatch.setattr(native_blocks, "MIN_SEQUENCES", 0)
            assert torch.allclose(stack.read(x, added), expected, rtol=1e-4, atol=1e-5)


@needs_library
@pytest.mark.kernels
@torch.inference_mode()
def test_attention_to_nothing_is_finite() -> None:
    hidden = torch.full((40, 1, 1, 9), -torch.inf)
    assert native_stack().read(torch.randn(40, 9, 40), hidden).isfinite().all()


@pytest.mark.parametrize("fields", [{"norm": {"kind": "rmsnorm"}}, {"position": {"kind": "rotary"}}])
def test_8_bits_of_what_cannot_be_fused_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'int8' requires fused encoder blocks, but they do not support some component of this model"):
        build_encoder_backend(made(KINDS[0] | fields), int8=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("fields", [{"norm": {"kind": "rmsnorm"}}, {"attention": {"softcap": 5.0}}, *PARALLEL])
def test_what_a_flat_stack_does_not_know_is_read_by_the_model(kind: dict[str, Any], fields: dict[str, Any]) -> None:
    model = made(kind | fields)
    assert build_encoder_backend(model) is model


@pytest.mark.parametrize(
    "fields",
    [{"position": {"kind": "alibi"}}, {"position": {"kind": "rotary"}}, {"attention": {"pattern": {"kind": "window", "size": 3}}}],
)
def test_positions_and_patterns_that_enter_attention_are_read_by_the_model(fields: dict[str, Any]) -> None:
    model = made(KINDS[0] | fields)
    assert build_encoder_backend(model) is model


def test_those_who_answer_read_with_it() -> None:
    tokenizer = Tokenizer.train(["abc def"], TokenizerConfig(kind="char", vocab_size=12))
    size = {"vocab_size": tokenizer.vocab_size}
    model = made(KINDS[1] | size)
    plain, fast = Classifier(model, tokenizer), Classifier(model, tokenizer, encoder_backend=build_encoder_backend(model))
    texts = ["abc", "d", "", "feed a bed"]
    assert [each.label for each in fast.classify(texts)] == [each.label for each in plain.classify(texts)]
    assert fast.classify(texts)[0].p == pytest.approx(plain.classify(texts)[0].p, abs=1e-10)
    embedded = [
        Embedder(model, tokenizer, encoder_backend=encoder_backend).embed(texts) for encoder_backend in (None, build_encoder_backend(model))
    ]
    assert np.allclose(*embedded, rtol=0, atol=1e-6)
    masked = made(KINDS[0] | size)
    guesses = [
        MaskFiller(masked, tokenizer, encoder_backend=encoder_backend).fill(["ab[MASK] d"])
        for encoder_backend in (None, build_encoder_backend(masked))
    ]
    assert [guess.text for guess in guesses[0][0][0]] == [guess.text for guess in guesses[1][0][0]]
    broken = build_encoder_backend(masked)
    with torch.no_grad():
        broken.encoder.register_forward_hook(lambda _, given, out: out * 0)
    with pytest.raises(AssertionError):
        assert MaskFiller(masked, tokenizer, encoder_backend=broken).fill(["ab[MASK] d"]) == guesses[0]
