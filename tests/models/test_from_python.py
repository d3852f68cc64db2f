"""Models built and called from Python, without a training batch."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import transom
from tests.models.combinations import batch_for
from tests.models.test_compile import INDUCTOR, TRACER
from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig, TextClassifierConfig, TextEmbedderConfig
from transom.config.recurrent import RecurrentDecoderConfig, RecurrentSeq2SeqConfig
from transom.config.vision import ConvolutionalNetworkConfig, VisionTransformerConfig
from transom.data.batch import LanguageBatch, PaddedSequences, TranslationBatch
from transom.errors import ConfigError, TransomError
from transom.layers.observe import ActivationRecorder
from transom.layers.position_encoding import TabulatedPositionEncoding

SMALL: dict[str, Any] = {"d_model": 16, "dropout": 0.0}
TEXT = SMALL | {"n_heads": 2, "d_ff": 32, "max_seq_len": 16}
PAIRS = {"source_vocab_size": 11, "target_vocab_size": 11}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"kind": "decoder", "vocab_size": 11, "n_layers": 2} | TEXT,
    "seq2seq": {"kind": "seq2seq", "n_encoder_layers": 1, "n_decoder_layers": 1} | PAIRS | TEXT,
    "encoder": {"kind": "encoder", "vocab_size": 11, "n_layers": 2} | TEXT,
    "classifier": {"kind": "text-classifier", "vocab_size": 11, "n_layers": 2, "classes": ["a", "b"]} | TEXT,
    "classifier by first token": {"kind": "text-classifier", "vocab_size": 11, "n_layers": 2, "classes": ["a", "b"], "pooling": "cls"}
    | TEXT,
    "embedder": {"kind": "text-embedder", "vocab_size": 11, "n_layers": 2} | TEXT,
    "recurrent": {"kind": "recurrent-seq2seq", "n_encoder_layers": 1, "n_decoder_layers": 1} | PAIRS | SMALL,
    "recurrent decoder": {"kind": "recurrent-decoder", "vocab_size": 11, "n_layers": 1} | SMALL,
    "vit": {"kind": "vision-transformer", "image_size": 8, "patch_size": 4, "classes": ["a", "b"], "n_heads": 2, "d_ff": 32} | SMALL,
    "convolutional": {"kind": "convolutional", "image_size": 8, "classes": ["a", "b"]} | SMALL,
}
CLOSE = {"rtol": 0.0, "atol": 1e-10}


def built(name: str, **fields: Any) -> Any:
    torch.manual_seed(1)
    return transom.build(MODELS[name] | fields).double().eval()


def called(model: Any, name: str, tokens: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
    """Call a model of any family with a tensor of token ids or pixels."""
    if name in ("vit", "convolutional"):
        return model(torch.linspace(0, 1, 2 * 3 * 64, dtype=torch.float64).view(2, 3, 8, 8), **more)
    if name in ("seq2seq", "recurrent", "embedder"):
        return model(tokens, attention_mask=mask, decoder_tokens=tokens, decoder_attention_mask=mask, **more)
    return model(tokens, attention_mask=mask, **more)


@pytest.mark.parametrize("name", MODELS)
def test_any_model_is_built_called_learned_from_and_observed(name: str) -> None:
    model, tokens = built(name).train(), torch.tensor([[1, 5, 6, 2], [1, 7, 8, 2]])
    recorder = ActivationRecorder(["*"])
    logits = called(model, name, tokens, observer=recorder)
    assert recorder.activations and logits.dtype == torch.float64
    F.cross_entropy(logits.flatten(0, -2), torch.zeros(logits.shape[:-1].numel(), dtype=torch.long)).backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "name", ["decoder", "seq2seq", "encoder", "classifier", "classifier by first token", "embedder", "recurrent", "recurrent decoder"]
)
@torch.no_grad()
def test_padding_changes_nothing(name: str, side: str) -> None:
    if side == "left" and name == "recurrent":
        with pytest.raises(TransomError, match="expected padding on the right"):
            called(built(name), name, torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
        return
    model, rows = built(name), [[1, 5, 6, 7, 2], [1, 8, 2]]
    padded = [row + [0] * (5 - len(row)) if side == "right" else [0] * (5 - len(row)) + row for row in rows]
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0] if side == "right" else [0, 0, 1, 1, 1]])
    both = called(model, name, torch.tensor(padded), mask)
    assert torch.allclose(called(model, name, torch.tensor(padded), mask.bool()), both, **CLOSE)
    for i, row in enumerate(rows):
        alone = called(model, name, torch.tensor([row]))[0]
        if name == "embedder":
            alone, ours = alone[0], both[i, i]
        else:
            ours = both[i] if both.dim() == 2 else both[i, : len(row)] if side == "right" else both[i, -len(row) :]
        assert torch.allclose(ours, alone, **CLOSE)


@torch.no_grad()
def test_tensors_are_what_a_batch_is() -> None:
    rows, mask = [[1, 5, 6], [1, 8]], torch.tensor([[1, 1, 1], [1, 1, 0]])
    text = PaddedSequences.pad(rows)
    model = built("decoder")
    real = mask.bool()
    assert torch.equal(model(text.tokens, attention_mask=mask)[real], model(LanguageBatch(text, text.tokens, (0, 1)))[real])
    padding = built("decoder", pad_token_id=0)
    assert torch.equal(padding(text.tokens), model(text.tokens, attention_mask=mask)), "the mask is derived from pad_token_id"
    pairs = built("seq2seq")
    batch = TranslationBatch(text, text, text.tokens, (0, 1))
    assert torch.equal(called(pairs, "seq2seq", text.tokens, mask)[real], pairs(batch)[real])


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@torch.no_grad()
def test_the_call_compiles_as_a_whole() -> None:
    model, tokens = built("decoder"), torch.tensor([[1, 5, 6, 2], [1, 7, 8, 0]])
    mask = (tokens > 0).long()
    torch.compiler.reset()  # it counts the compilations of all tests of a process
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(tokens, attention_mask=mask), model(tokens, attention_mask=mask), **CLOSE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "decodr"}, "kind: expected a kind of model or a preset, found 'decodr'; did you mean decoder"),
        ({}, "kind: expected a kind of model or a preset, found None"),
        ({"kind": "decoder"}, "vocab_size: expected a value, found none"),
        ({"kind": "text-classifier", "vocab_size": 9}, "classes: expected a value, found none"),
        ({"kind": "decoder", "vocab_size": 9, "d_modle": 8}, "d_modle: unknown field d_modle; did you mean d_model"),
        ({"kind": "decoder", "vocab_size": 9, "d_model": 10, "n_heads": 3}, "d_model 10 is not a multiple of n_heads 3"),
        ({"preset": "gpt3"}, "expected the name of a preset, found 'gpt3'"),
        ({"kind": "text-embedder", "vocab_size": 9, "head_bias": True}, "head_bias: expected false"),
        ({"kind": "encoder", "vocab_size": 9, "mask_token_id": 11}, "mask_token_id: expected at most vocab_size, 9, found 11"),
    ],
)
def test_what_does_not_fit_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        transom.build(fields)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_named() -> None:
    model, tokens = built("seq2seq"), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(TransomError, match=r"attention_mask: expected the shape of the tokens, \(2, 3\), found \(2, 2\)"):
        model(tokens, attention_mask=torch.ones(2, 2), decoder_tokens=tokens)
    with pytest.raises(TransomError, match=r"decoder_tokens: expected the target's token ids.*found none"):
        model(tokens)
    long = torch.ones(1, model.config.max_seq_len + 1, dtype=torch.long)
    with pytest.raises(TransomError, match=r"^tokens: expected texts of at most max_seq_len = \d+ tokens, found \d+; cut the text, or"):
        model(tokens[:1], decoder_tokens=long)
    text = PaddedSequences.pad([[1, 5]])
    with pytest.raises(TransomError, match="attention_mask: expected only with a tensor of token ids, found with a batch"):
        model(TranslationBatch(text, text, text.tokens, (0,)), attention_mask=torch.ones(1, 2))
    with pytest.raises(TransomError, match=r"tokens: expected integers of shape \(batch, length\), found torch.float32"):
        model(tokens.float(), decoder_tokens=tokens)


def test_config_classes_need_sizes_only() -> None:
    sizes: Any = {"d_model": 8, "n_heads": 2, "d_ff": 8}
    configs = [DecoderConfig(vocab_size=9, n_layers=1, **sizes), MaskedLMConfig(vocab_size=9, n_layers=1, **sizes)]
    configs += [
        TextClassifierConfig(vocab_size=9, classes=("a", "b"), n_layers=1, **sizes),
        TextEmbedderConfig(vocab_size=9, n_layers=1, **sizes),
    ]
    configs += [Seq2SeqConfig(source_vocab_size=9, target_vocab_size=9, n_encoder_layers=1, n_decoder_layers=1, **sizes)]
    configs += [
        RecurrentSeq2SeqConfig(source_vocab_size=9, target_vocab_size=9, d_model=8),
        RecurrentDecoderConfig(vocab_size=9, d_model=8),
    ]
    configs += [VisionTransformerConfig(classes=("a", "b"), n_layers=1, **sizes), ConvolutionalNetworkConfig(classes=("a", "b"))]
    for config in configs:
        assert transom.build(config).config == config
    assert transom.build({"preset": "gpt2", "n_layers": 1, "d_model": 12, "n_heads": 2, "d_ff": 8, "vocab_size": 9}).config.d_model == 12


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "alibi", {"kind": "rotary", "rope_scaling": "yarn", "factor": 4.0}])
@torch.no_grad()
def test_a_model_in_float64_has_tables_in_float64(position: Any) -> None:
    torch.manual_seed(1)
    model = transom.build(MODELS["decoder"] | {"position": position, "n_heads": 2, "max_seq_len": 500})
    places = [module for module in model.modules() if isinstance(module, TabulatedPositionEncoding)]
    today = [{name: table.clone() for name, table in place.named_buffers()} for place in places]
    for move in (lambda m: m.double(), lambda m: m.to(torch.float64), lambda m: m.bfloat16().double()):
        moved = move(copy.deepcopy(model))
        for place in (module for module in moved.modules() if isinstance(module, TabulatedPositionEncoding)):
            for name, exact in place.tables(torch.float64).items():
                assert torch.equal(place.get_buffer(name), exact)
    for place, before in zip((m for m in model.double().float().modules() if isinstance(m, TabulatedPositionEncoding)), today, strict=True):
        assert all(torch.equal(place.get_buffer(name), table) for name, table in before.items())
    assert places and all("table" not in name and "cos" not in name for name in model.state_dict())


@torch.no_grad()
def test_a_grid_in_float64_has_tables_in_float64() -> None:
    model = built("vit", position="sinusoidal-2d")
    (place,) = (module for module in model.modules() if isinstance(module, TabulatedPositionEncoding))
    assert torch.equal(place.get_buffer("table"), place.tables(torch.float64)["table"])
    assert place.get_buffer("table").dtype == torch.float64


@pytest.mark.parametrize("name", ["decoder", "seq2seq", "encoder", "recurrent"])
def test_tied_weights_are_in_the_state_once(name: str) -> None:
    model = built(name)
    state, tied = model.state_dict(), model.tied
    assert tied and not tied.keys() & state.keys() and set(tied.values()) <= state.keys()
    assert sum(x.numel() for x in state.values() if x.is_floating_point()) == sum(p.numel() for p in model.parameters())
    for states in (state, state | {alias: state[kept] for alias, kept in tied.items()}):
        other = transom.build(MODELS[name]).double()
        other.load_state_dict(states)
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))
    wrapped = nn.Sequential(model)
    assert set(wrapped.state_dict()) == {f"0.{key}" for key in state}
    again = copy.deepcopy(model)
    assert again.tied == tied and again.state_dict().keys() == state.keys()


@pytest.mark.parametrize("name", ["decoder", "seq2seq", "encoder", "classifier", "vit", "convolutional", "recurrent", "recurrent decoder"])
@torch.no_grad()
def test_a_head_may_have_a_bias(name: str) -> None:
    plain, biased, tokens = built(name), built(name, head_bias=True), torch.tensor([[1, 5, 6, 2], [1, 7, 8, 2]])
    biased.load_state_dict(plain.state_dict() | {"unembedding.bias": biased.unembedding.bias.normal_()})
    difference = called(biased, name, tokens) - called(plain, name, tokens)
    assert torch.allclose(difference, biased.unembedding.bias.expand_as(difference), **CLOSE)
    batch = batch_for(biased.config) if name not in ("vit", "convolutional") else None
    if batch is not None:
        hidden, weight = biased.logit_factors(batch)
        assert torch.allclose(hidden @ weight.T, biased(batch), **CLOSE), "the product is the logits"


@torch.no_grad()
def test_the_mask_may_be_a_token_of_the_vocabulary() -> None:
    assert built("encoder").embedding.tokens.num_embeddings == 12
    assert (
        built("encoder", mask_token_id=3).embedding.tokens.num_embeddings
        == 11
        == built("encoder", mask_token_id=3).unembedding.out_features
    )


@torch.no_grad()
def test_a_text_s_vector_may_be_its_start_symbol_s() -> None:
    model, tokens = built("embedder", pooling="cls"), torch.tensor([[1, 5, 6, 2]])
    text = model.make_batch(tokens, decoder_tokens=tokens).source
    assert torch.allclose(model.vectors(text)[0], F.normalize(model.encode(text)[0, 0], dim=0), **CLOSE)
