"""Fused inference gives the outputs of the model, alone and in a search."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest
import torch

from tests.decoding.models import letter_tokenizers, tiny_model
from tests.decoding.tables import EOS, FORBIDDEN, SOS
from transom.config.model import Seq2SeqConfig
from transom.config.schema import ComponentConfig, allowed_schemas
from transom.data.batch import PaddedSequences
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.decoding.packed_linear import DECODE_ROWS, Activation, UnpackedLinear
from transom.decoding.predictors.translator import Translator
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import LengthLimits, Strategy
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search
from transom.kernels.linear import FUSED_ACTIVATIONS, OneDnnLinear, onednn_ops
from transom.layers.activation import relu
from transom.layers.context import LayerContext
from transom.layers.feed_forward import FeedForward
from transom.models.seq2seq import Seq2SeqTransformer

VOCAB = 9
VARIANTS: list[dict[str, object]] = [
    {},
    {"norm_placement": "pre"},
    {"d_head": 3, "d_value": 5},
    {"attention": {"output_projection": False}},
    {"attention": {"qkv_bias": False, "output_bias": False}, "feed_forward": {"bias": False}},
    {"tie_embeddings": "none", "scale_embeddings": False},
    {"logit_scale": 0.3, "logit_softcap": 2.0, "head_bias": True},
    {"embedding_norm": True},
    {"decoder_n_heads": 1, "decoder_d_ff": 9},
]
SOURCES = [[3, 4, 5, 6, 2], [7, 2], [8, 8, 3, 2], [5, 2], [4, 6, 7, 8, 3, 3, 2]]


@pytest.mark.parametrize("fields", VARIANTS)
@pytest.mark.parametrize("sources", [SOURCES, SOURCES[2:3]], ids=["padded", "one"])
@torch.inference_mode()
def test_steps_equal_the_models(fields: dict[str, object], sources: list[list[int]]) -> None:
    model = tiny_model(VOCAB, **fields)
    flat = FusedSeq2Seq(model)
    source = PaddedSequences.pad(sources)
    memory, flat_memory = model.encode(source), flat.encode(source)
    real = source.segments > 0
    assert torch.allclose(memory.states[real], flat_memory.states[real], rtol=0, atol=1e-10)
    cache, flat_cache = model.start(memory, 3, 8), flat.start(flat_memory, 3, 8)
    draw = torch.Generator().manual_seed(1)
    for new in (1, 3, 1, 2):
        tokens = torch.randint(3, VOCAB, (3 * len(sources), new), generator=draw)
        assert torch.allclose(model.step(tokens, cache), flat.step(tokens, flat_cache), rtol=0, atol=1e-10)
        parents = torch.randint(0, 3, (len(sources), 3), generator=draw) + 3 * torch.arange(len(sources))[:, None]
        cache.reorder(parents.flatten())
        flat_cache.reorder(parents.flatten())


@torch.inference_mode()
def test_sources_can_leave() -> None:
    model = tiny_model(VOCAB)
    flat = FusedSeq2Seq(model)
    source = PaddedSequences.pad(SOURCES)
    cache, flat_cache = model.start(model.encode(source), 2, 8), flat.start(flat.encode(source), 2, 8)
    kept, rows = torch.tensor([1, 4]), torch.tensor([3, 2, 8, 8])
    draw = torch.Generator().manual_seed(1)
    for n_rows in (10, 4, 4):
        tokens = torch.randint(3, VOCAB, (n_rows, 1), generator=draw)
        assert torch.allclose(model.step(tokens, cache), flat.step(tokens, flat_cache), rtol=0, atol=1e-10)
        if n_rows == 10:
            for each in (cache, flat_cache):
                each.select_sources(kept)
                each.reorder(rows)
        else:
            for each in (cache, flat_cache):
                each.reorder(torch.tensor([1, 0, 3, 2]))


@pytest.mark.parametrize("strategy", [GreedySearch(EOS), BeamSearch(EOS, 3, 3, 0.6)], ids=["greedy", "beam"])
def test_searches_find_the_same(strategy: Strategy) -> None:
    model = tiny_model(VOCAB)
    limits = LengthLimits(torch.zeros(len(SOURCES), dtype=torch.long), torch.tensor([7, 6, 7, 6, 7]))

    def run(stepper: object) -> list[tuple[int, ...]]:
        found = search(
            stepper, SearchRequest(PaddedSequences.pad(SOURCES), strategy, limits, SOS, EOS, [SuppressTokens(torch.tensor(FORBIDDEN))])
        )  # type: ignore[arg-type]
        return [h.tokens for of_source in found for h in of_source]

    assert run(FusedSeq2Seq(model)) == run(model)


@pytest.mark.parametrize("rows", [1, 7])
@torch.inference_mode()
def test_bfloat16_is_as_near_to_the_truth_as_the_models_own(rows: int) -> None:
    model = tiny_model(40, d_model=64, d_ff=96)
    short = tiny_model(40, d_model=64, d_ff=96, dtype=torch.bfloat16)
    flat = FusedSeq2Seq(short)
    draw = torch.Generator().manual_seed(1)
    source = PaddedSequences.pad([[*torch.randint(3, 40, (5,), generator=draw).tolist(), EOS] for _ in range(rows)])
    tokens = torch.randint(3, 40, (rows, 1), generator=draw)
    truth = model.step(tokens, model.start(model.encode(source), 1, 4)).double()
    own = short.step(tokens, short.start(short.encode(source), 1, 4)).double()
    ours = flat.step(tokens, flat.start(flat.encode(source), 1, 4)).double()
    own_error, our_error = (own - truth).abs().max().item(), (ours - truth).abs().max().item()
    assert 0 < our_error < 1.5 * own_error < 0.1 * truth.abs().max().item()


@pytest.mark.parametrize("after", list(FUSED_ACTIVATIONS))
@pytest.mark.parametrize("biased", [False, True])
def test_packed_products_are_near_the_plain_one(after: Activation | None, biased: bool) -> None:
    ops = onednn_ops()
    if ops is None or not ops.is_supported():
        pytest.skip("needs a processor that multiplies bfloat16")
    draw = torch.Generator().manual_seed(1)
    weight, bias, x, residual = (torch.randn(*shape, generator=draw).bfloat16() for shape in ((24, 16), (24,), (3, 5, 16), (3, 5, 24)))
    weight[3] = 0
    given = weight, bias if biased else None, after
    expected, found = UnpackedLinear(*given), OneDnnLinear(*given, DECODE_ROWS)
    for added in (None, residual) if after is None else (None,):
        assert (expected(x, added) - found(x, added)).abs().max().item() < 0.02 * expected(x, added).abs().max().item()
    assert (found(x) < 0).any().item() == (after is not relu)


def test_a_translator_answers_the_same_with_a_searcher() -> None:
    tokenizers = letter_tokenizers()
    model = tiny_model(tokenizers.target.vocab_size)
    texts = ["a", "bad cab", "", "fed. abc!", "had a cab"]
    plain = Translator(model, tokenizers).n_best(texts, 3, beam_size=4, max_length=9)
    fused = Translator(model, tokenizers, decoder_backend=FusedSeq2Seq(model)).n_best(texts, 3, beam_size=4, max_length=9)
    for expected, found in zip(chain(*plain), chain(*fused), strict=True):
        assert (found.score, found.log_p) == pytest.approx((expected.score, expected.log_p))
        assert replace(found, score=expected.score, log_p=expected.log_p) == expected
    assert len({t.text for of_text in plain for t in of_text}) > 6


def test_a_module_without_a_flat_form_is_searched_as_it_is() -> None:
    class Doubled(FeedForward):
        def forward(self, x: torch.Tensor, ctx: LayerContext = LayerContext()) -> torch.Tensor:
            return 2 * super().forward(x, ctx)

    model = tiny_model(VOCAB)
    assert isinstance(build_decoder_backend(model), FusedSeq2Seq)
    model.decoder.blocks[1].ff.__class__ = Doubled
    assert build_decoder_backend(model) is model
    short = build_decoder_backend(model, torch.bfloat16)
    assert isinstance(short, Seq2SeqTransformer) and short.unembedding.weight.dtype == torch.bfloat16
    assert model.unembedding.weight.dtype == torch.float64


def components() -> Iterator[tuple[str, ComponentConfig]]:
    """Every kind of every component of the model, by field."""
    for name, field in Seq2SeqConfig.model_fields.items():
        for kind in allowed_schemas(field):
            if issubclass(kind, ComponentConfig):
                yield name, kind()


@pytest.mark.parametrize(("field", "component"), list(components()), ids=lambda x: x if isinstance(x, str) else x.kind)
@torch.inference_mode()
def test_every_component_searches_as_it_trains(field: str, component: ComponentConfig) -> None:
    model = tiny_model(VOCAB, **{field: component})
    decoder_backend, source = build_decoder_backend(model), PaddedSequences.pad(SOURCES)
    tokens = torch.tensor([[3], [4], [5], [6], [7]])
    expected = model.step(tokens, model.start(model.encode(source), 1, 3))
    error = (decoder_backend.step(tokens, decoder_backend.start(decoder_backend.encode(source), 1, 3)) - expected).abs().max()
    assert error < 1e-10 * max(1.0, expected.abs().max())  # without norms logits are tens of thousands


@pytest.mark.parametrize("attention", [{"pattern": {"kind": "window", "size": 2}}, {"value_residual": "fixed"}], ids=str)
def test_what_the_flat_layout_does_not_know_is_searched_with_the_model_itself(attention: dict[str, object]) -> None:
    model = tiny_model(VOCAB, attention=attention)
    assert build_decoder_backend(model) is model and isinstance(build_decoder_backend(tiny_model(VOCAB)), FusedSeq2Seq)
