"""The encoder-decoder: causality, padding, packing, caching and tying."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from tests.models.tiny import seq2seq
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.models.build import build_model
from transom.models.seq2seq import Seq2SeqTransformer

VOCAB = 13


def tiny(dtype: torch.dtype = torch.float64, **fields: object) -> Seq2SeqTransformer:
    torch.manual_seed(1)
    size = {"d_model": 16, "n_heads": 4, "d_ff": 24, "n_encoder_layers": 2, "n_decoder_layers": 2, "max_seq_len": 24}
    model = build_model(seq2seq(**{**size, "source_vocab_size": VOCAB, "target_vocab_size": VOCAB, **fields}))
    assert isinstance(model, Seq2SeqTransformer)
    return model.to(dtype).eval()


def batch(sources: list[list[int]], targets: list[list[int]]) -> TranslationBatch:
    target = PaddedSequences.pad(targets)
    return TranslationBatch(PaddedSequences.pad(sources), target, target.tokens, tuple(range(len(sources))))


PAIRS = batch([[3, 4, 5, 6, 2], [7, 2]], [[1, 5, 9, 4], [1, 7]])
VARIANTS = [
    {},
    {"norm_placement": "pre"},
    {"d_head": 3, "d_value": 5},
    {"tie_embeddings": "none"},
    {"tie_embeddings": "decoder"},
    {"attention": {"output_projection": False}},
]


@pytest.mark.parametrize("fields", VARIANTS)
def test_a_changed_token_changes_no_earlier_output_bit_for_bit(fields: dict[str, object]) -> None:
    model = tiny(torch.float32, **fields)
    before = model(PAIRS)
    for place in range(1, 4):
        tokens = PAIRS.decoder_input.tokens.clone()
        tokens[0, place] = 11
        changed = PaddedSequences(tokens, PAIRS.decoder_input.positions, PAIRS.decoder_input.segments, PAIRS.decoder_input.lengths)
        after = model(TranslationBatch(PAIRS.source, changed, tokens, (0, 1)))
        assert torch.equal(before[0, :place], after[0, :place])
        assert not torch.equal(before[0, place], after[0, place])


@pytest.mark.parametrize("fields", VARIANTS)
def test_garbage_in_the_padding_changes_nothing(fields: dict[str, object]) -> None:
    model = tiny(torch.float32, **fields)
    source, target = PAIRS.source, PAIRS.decoder_input
    noisy = TranslationBatch(
        PaddedSequences(torch.where(source.segments > 0, source.tokens, 9), source.positions, source.segments, source.lengths),
        PaddedSequences(torch.where(target.segments > 0, target.tokens, 8), target.positions, target.segments, target.lengths),
        PAIRS.labels,
        (0, 1),
    )
    real = target.segments > 0
    assert (model(PAIRS)[real] - model(noisy)[real]).abs().max() <= 1e-6
    alone = model(batch([[7, 2]], [[1, 7]]))
    assert (model(PAIRS)[1, :2] - alone[0]).abs().max() <= 1e-6


@pytest.mark.long
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_gradients_of_every_weight_by_finite_differences(placement: str) -> None:
    sizes = {"d_model": 4, "n_heads": 2, "d_ff": 5, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_seq_len": 6}
    model = tiny(**sizes, norm_placement=placement, source_vocab_size=7, target_vocab_size=7)
    pairs = batch([[3, 4, 2], [6, 2]], [[1, 5, 4], [1, 6]])
    real = pairs.decoder_input.segments > 0
    weights = dict(model.named_parameters())

    def logits(*values: Tensor) -> Tensor:
        return functional_call(model, dict(zip(weights, values, strict=True)), (pairs,))[real]

    assert torch.autograd.gradcheck(logits, tuple(weights.values()), fast_mode=True)  # along random directions


def test_packed_sequences_equal_sequences_alone() -> None:
    model = tiny()
    pack = lambda *rows: PaddedSequences(  # noqa: E731
        torch.tensor([[t for row in rows for t in row]]),
        torch.tensor([[i for row in rows for i in range(len(row))]]),
        torch.tensor([[n + 1 for n, row in enumerate(rows) for _ in row]]),
        torch.tensor([sum(map(len, rows))]),
    )
    packed = TranslationBatch(pack([3, 4, 5, 6, 2], [7, 2]), pack([1, 5, 9, 4], [1, 7]), torch.zeros(1, 6, dtype=torch.long), (0,))
    together = torch.cat([model(PAIRS)[0], model(PAIRS)[1, :2]])
    assert torch.allclose(model(packed)[0], together, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fields", VARIANTS)
def test_cached_steps_equal_the_whole_forward_for_every_split(fields: dict[str, object]) -> None:
    model = tiny(**fields)
    source, tokens = PAIRS.source, torch.tensor([[1, 5, 9, 4, 6], [1, 7, 3, 3, 2]])
    target = PaddedSequences.pad(tokens.tolist())
    whole = model(TranslationBatch(source, target, tokens, (0, 1)))
    with torch.inference_mode():
        memory = model.encode(source)
        for cuts in product([False, True], repeat=4):
            cache = model.start(memory, 1, 5)
            ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [5]
            parts = [model.step(tokens[:, a:b], cache) for a, b in zip([0, *ends], ends, strict=False)]
            assert torch.allclose(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)


def test_beams_continue_from_the_rows_they_are_told_to() -> None:
    model = tiny()
    with torch.inference_mode():
        cache = model.start(model.encode(PAIRS.source), 2, 4)
        model.step(torch.tensor([[1], [1], [1], [1]]), cache)
        model.step(torch.tensor([[5], [6], [7], [8]]), cache)
        cache.reorder(torch.tensor([1, 1, 2, 3]))
        last = model.step(torch.tensor([[4], [9], [3], [2]]), cache)
    whole = [[1, 6, 4], [1, 6, 9], [1, 7, 3], [1, 8, 2]]
    sources = [[3, 4, 5, 6, 2]] * 2 + [[7, 2]] * 2
    assert torch.allclose(last[:, 0], model(batch(sources, whole))[:, -1], rtol=0, atol=1e-10)
    with torch.inference_mode():
        cache.reorder(torch.tensor([2, 3]))
        cache.select_sources(torch.tensor([1]))
        rest = model.step(torch.tensor([[5], [5]]), cache)
    assert torch.allclose(rest[:, 0], model(batch([[7, 2]] * 2, [[1, 7, 3, 5], [1, 8, 2, 5]]))[:, -1], rtol=0, atol=1e-10)


def test_tied_tables_are_one_tensor() -> None:
    for tie, n_tables in (("all", 1), ("decoder", 2), ("none", 3)):
        model = tiny(tie_embeddings=tie)
        tables = {p.data_ptr() for name, p in model.named_parameters(remove_duplicate=False) if p.shape[0] == VOCAB}
        assert len(tables) == n_tables


def test_initial_logits_are_near_unit_variance_and_the_same_for_a_seed() -> None:
    model, again = tiny(d_model=64), tiny(d_model=64)
    assert 0.3 < model(PAIRS).var().item() < 3.0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_decoder_may_have_other_heads_and_another_feed_forward_width() -> None:
    shared = {"n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "position": "rotary"}
    equal = seq2seq(**shared, source_vocab_size=VOCAB, target_vocab_size=VOCAB, d_model=16)
    assert (equal.decoder_n_heads, equal.decoder_d_ff) == (4, 24) and equal.of_stack("decoder") is equal
    config = type(equal).model_validate(equal.model_dump() | {"decoder_n_heads": 2, "decoder_d_ff": 10})
    decoder = config.of_stack("decoder")
    assert (decoder.n_heads, decoder.n_kv_heads, decoder.d_head, decoder.d_value, decoder.d_ff) == (2, 1, 8, 8, 10)
    assert config.of_stack("encoder") is config and decoder.of_stack("decoder") == decoder
    kept = type(equal).model_validate(equal.model_dump() | {"d_head": 6, "decoder_n_heads": 2}).of_stack("decoder")
    assert (kept.d_head, kept.d_value) == (6, 4), "of heads that do not divide d_model among themselves, the width stays"
    model = build_model(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["encoder.blocks.0.attn.k.weight"] == (8, 16) and shapes["encoder.blocks.0.ff.up.weight"] == (24, 16)
    assert shapes["decoder.blocks.0.attn.k.weight"] == shapes["decoder.blocks.0.cross.k.weight"] == (8, 16)
    assert shapes["decoder.blocks.0.ff.up.weight"] == (10, 16)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"decoder_n_heads": 3}, "d_model 16 is not a multiple of decoder_n_heads 3"),
        ({"n_kv_heads": 1, "decoder_n_heads": 2}, r"heads of keys and values, found 2 \* 1 / 4"),
        ({"position": "rotary", "decoder_n_heads": 16}, "needs at least 2 rotated dimensions per head, found 0 in the decoder"),
        (
            {"d_head": 3, "d_value": 4, "decoder_n_heads": 8, "attention": {"output_projection": False}},
            "decoder_n_heads . d_value = d_model",
        ),
    ],
)
def test_heads_that_do_not_fit_the_decoder_are_refused(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        tiny(**fields)
