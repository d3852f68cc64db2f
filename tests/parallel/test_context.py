"""Context parallelism against one process, in float64: loss and all gradients."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from tests.models.combinations import SET_ENCODERS, SET_WRITERS
from tests.models.combinations import described as described_text
from tests.models.test_vision import SET_NETWORKS, batch_of
from tests.models.test_vision import described as described_images
from tests.parallel.context_ranks import Case, Split, largest_tensor, sharded_step, split_steps
from tests.parallel.equality import StepGradients, assert_equal, backward, build_double, gradients_of, single_process
from tests.parallel.test_tensor import cases_of, fits
from transom.config.architecture import ModelConfig
from transom.config.model import AnyModel
from transom.config.moe import MoeConfig
from transom.config.parallel import ParallelConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import LabeledTextBatch, LanguageBatch, MaskedBatch, PaddedSequences, TranslationBatch
from transom.layers.masks.mask_rules import CAUSAL, CAUSAL_IN_SEGMENT, FULL, PREFIX_LM, DistanceRule, TokenPositions
from transom.parallel.axes import chunk_mask
from transom.parallel.axes.chunk_mask import ChunkMask
from transom.parallel.processes.local_ranks import run_on_ranks

VOCAB = 11
SIZES: dict[str, Any] = {"d_model": 8, "n_heads": 4, "n_kv_heads": 2, "d_ff": 12, "max_seq_len": 32}


def described(fields: dict[str, Any]) -> ModelConfig:
    """Validate the configuration of a small model."""
    config: ModelConfig = TypeAdapter(AnyModel).validate_python(SIZES | fields)
    return config


def packed(*rows: list[int]) -> PaddedSequences:
    """Build rows of several documents of these lengths; the rest of a row is padding."""
    length = max(map(sum, rows))
    positions, segments = torch.zeros(2, len(rows), length, dtype=torch.long)
    for i, lengths in enumerate(rows):
        parts = [torch.arange(n) for n in lengths]
        positions[i, : sum(lengths)] = torch.cat(parts)
        segments[i, : sum(lengths)] = torch.cat([torch.full((n,), number) for number, n in enumerate(lengths, 1)])
    tokens = torch.randint(3, VOCAB, positions.shape, generator=torch.Generator().manual_seed(length))
    return PaddedSequences(tokens, positions, segments, torch.tensor([sum(lengths) for lengths in rows]))


def language(*rows: list[int]) -> LanguageBatch:
    text = packed(*rows)
    return LanguageBatch(text, text.tokens.roll(-1, 1), tuple(range(len(rows))))


def translation(source: list[list[int]], target: list[list[int]]) -> TranslationBatch:
    """Build packed pairs; document i of a target row is the translation of document i of its source row."""
    text = packed(*target)
    return TranslationBatch(packed(*source), text, text.tokens.roll(-1, 1), tuple(range(len(target))))


DECODER = {"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB}
PAIRS = {"kind": "seq2seq", "n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
WINDOW = {"pattern": [{"kind": "window", "size": 3}, "full"], "softcap": 2.0, "sinks": True, "value_residual": "learned"}
IMAGES = VisionTransformerConfig(
    d_model=8, n_heads=2, d_ff=8, n_layers=2, image_size=6, patch_size=2, channels=1, classes=("a", "b", "c"), pooling="cls"
)
TEXTS = [packed([13], [9]), packed([4, 6], [5, 2, 1]), packed([3], [1])]
CASES = [
    Case(described(DECODER), language([13], [9])),
    Case(described(DECODER | {"tie_embeddings": True, "attention": WINDOW, "norm": "layernorm"}), language([5, 8], [1, 2, 3], [3])),
    Case(described(DECODER | {"position": "alibi", "attention": {"qk_norm": "rmsnorm"}}), language([6, 5], [7])),
    Case(described(DECODER | {"position": "relative"}), language([11], [2, 7])),
    Case(described(DECODER | {"position": "learned", "norm_placement": "post"}), language([1])),
    Case(described(DECODER), language([2], [1])),
    Case(described(DECODER | {"feed_forward": {"kind": "moe", "n_experts": 3}}), language([7], [4, 2])),
    Case(described(PAIRS | {"tie_embeddings": "all"}), translation([[9], [4]], [[5], [7]])),
    Case(described(PAIRS | {"attention": WINDOW, "norm": "layernorm"}), translation([[3, 4], [1, 6]], [[5, 6], [2, 3]])),
    Case(described(PAIRS | {"position": "sinusoidal", "norm_placement": "sandwich"}), translation([[1], [1]], [[9], [3]])),
    *(
        Case(
            described({"kind": "encoder", "n_layers": 2, "vocab_size": VOCAB, "attention": attention}),
            MaskedBatch(text, text.tokens, (text.segments > 0) & (text.tokens % 2 > 0), (0, 1)),
        )
        for text, attention in zip(TEXTS, [{}, WINDOW, {"approximation": "linear"}], strict=True)
    ),
    *(
        Case(
            described({"kind": "text-classifier", "n_layers": 1, "vocab_size": VOCAB, "classes": ["a", "b", "c"], "pooling": pooling}),
            LabeledTextBatch(TEXTS[0], torch.tensor([2, 1]), (0, 1)),
        )
        for pooling in ("cls", "mean")
    ),
    Case(IMAGES, batch_of(IMAGES)),
]


def without_capacity(config: VisionTransformerConfig) -> bool:
    """Return whether no tokens compete for experts."""
    return not isinstance(config.feed_forward, MoeConfig) or config.feed_forward.capacity_factor is None


def combined() -> list[Case]:
    """Return models of all families with each component that context parallelism supports."""
    texts = [fields for fields in SET_WRITERS + SET_ENCODERS if not fields["kind"].startswith("recurrent")]
    pictures = [described_images(fields) for fields in SET_NETWORKS if fits(fields)]
    return [Case(described_text(case.fields), case.batch) for case in cases_of(texts)] + [
        Case(config, batch_of(config)) for config in pictures if isinstance(config, VisionTransformerConfig) and without_capacity(config)
    ]


def assert_equal_to_one_process(cases: list[Case], *splits: Split) -> None:
    """Compare loss and gradients of the first and the last rank with those of one process."""
    expected = [single_process(*case) for case in cases]
    for split in splits:
        results = run_on_ranks(split.layout.n_processes, split_steps, cases, split)
        for found in (results[0], results[-1]):
            for number, steps in enumerate(zip(found, expected, strict=True)):
                assert_equal(*steps, f"{split}, case {number}")


@pytest.mark.long
def test_loss_and_gradients_equal_those_of_one_process() -> None:
    assert_equal_to_one_process(CASES, Split(ParallelConfig(context=2)), Split(ParallelConfig(context=3), ring=False))
    assert_equal_to_one_process(CASES[::3], Split(ParallelConfig(context=4)))


@pytest.mark.long
def test_together_with_tensor_parallelism() -> None:
    assert_equal_to_one_process(CASES, Split(ParallelConfig(context=2, tensor=2)))


def pairs_per_turn(masks: list[ChunkMask]) -> int:
    """Return the number of pairs in visible tiles, of the rank with most of them in each turn of the ring."""
    sizes = [[sum((q.stop - q.start) * (k.stop - k.start) for q, k, _ in tiles) for tiles in mask.tiles] for mask in masks]
    return sum(max(of_rank[rank - turn] for rank, of_rank in enumerate(sizes)) for turn in range(len(masks)))


def test_causal_attention_is_balanced_and_others_are_not_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_mask, "TILE_SIZE", 4)
    tokens, n = TokenPositions.single_sequence(256), 4
    found = {}
    for rule in (CAUSAL_IN_SEGMENT, PREFIX_LM, CAUSAL & DistanceRule(max_distance=9), FULL):
        masks = [
            ChunkMask((), rule, tokens.select(slice(64 * i, 64 * i + 64)), tokens, None, rank=i, n_ranks=n, n_queries=256) for i in range(n)
        ]
        balanced = [mask.balanced for mask in masks]
        found[rule] = pairs_per_turn(masks), None if None in balanced else pairs_per_turn([each.mask for each in balanced if each])
    assert found[FULL] == (n * 64**2, None)
    assert found[CAUSAL & DistanceRule(max_distance=9)][1] is None, "a window has as many keys everywhere"
    for rule in (CAUSAL_IN_SEGMENT, PREFIX_LM):
        chunks, zigzag = found[rule]
        assert chunks > 3.4 * 64**2 and zigzag is not None and zigzag < 2.2 * 64**2


@pytest.mark.soak
@pytest.mark.parametrize(
    "split",
    [
        Split(ParallelConfig(context=2), ring=False),
        Split(ParallelConfig(context=3)),
        Split(ParallelConfig(context=5)),
        Split(ParallelConfig(context=3, tensor=2)),
    ],
)
def test_any_components_equal_those_of_one_process(split: Split) -> None:
    assert_equal_to_one_process(CASES + combined(), split)


@pytest.mark.long
def test_with_sharded_weights() -> None:
    config, batches = CASES[0].config, [language([7], [2, 4]), language([5], [3])]
    model = build_double(config)
    loss = sum(backward(model, batch) for batch in batches)
    for found in run_on_ranks(4, sharded_step, config, batches):
        assert_equal(found, StepGradients(loss, gradients_of(model)))


@pytest.mark.long
def test_a_ring_needs_no_larger_tensor_than_the_residual_stream() -> None:
    """The scores of a rank's queries, 2 x 4 x 64 x 128, and a mask of them are larger than the logits, 2 x 128 x 11."""
    config, batch = described(DECODER | {"n_layers": 1, "d_ff": 8, "max_seq_len": 128}), language([128], [100, 28])
    assert max(run_on_ranks(2, largest_tensor, config, batch, True)) <= 2 * 128 * VOCAB
    assert max(run_on_ranks(2, largest_tensor, config, batch, False)) >= 2 * 4 * 64 * 128
