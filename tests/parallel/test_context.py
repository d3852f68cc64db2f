"""Context parallelism against one process, in float64: loss and all gradients."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tests.models.combinations import SET_ENCODERS, SET_WRITERS, batch_for
from tests.models.combinations import described as described_text
from tests.models.test_vision import SET_NETWORKS, batch_of
from tests.models.test_vision import described as described_images
from tests.parallel.context_ranks import (
    Case,
    built,
    largest_tensors,
    loss_and_gradients,
    part_of_loss,
    router_counts,
    sharded_results,
    split_results,
)
from tests.parallel.ranks import run_on_ranks
from transom.config.architecture import ModelConfig
from transom.config.model import AnyModel
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import LabeledTextBatch, LanguageBatch, MaskedBatch, PaddedSequences, TranslationBatch
from transom.layers.observe import ActivationRecorder

CLOSE = 1e-10
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


def combined() -> list[Case]:
    """Return models of all families with each component that context parallelism supports."""
    plain = [fields for fields in SET_WRITERS + SET_ENCODERS if not fields["kind"].startswith("recurrent")]
    texts = [described_text(fields) for fields in plain if fields["depth"] == "full"]
    pictures = [described_images(fields) for fields in SET_NETWORKS if fields.get("depth", "full") == "full"]
    return [Case(config, batch_for(config)) for config in texts] + [
        Case(config, batch_of(config)) for config in pictures if isinstance(config, VisionTransformerConfig)
    ]


COMBINED = combined()


def differences(n: int, cases: list[Case], ring: bool) -> list[str]:
    """Return the losses and gradients that differ on ``n`` ranks from those of one process."""
    wrong = []
    results = run_on_ranks(n, split_results, cases, ring)
    assert len(results) == n
    for rank in (0, n - 1):
        for number, (case, found) in enumerate(zip(cases, results[rank], strict=True)):
            model = built(case.config)
            expected = loss_and_gradients(model, part_of_loss(model, case.batch))
            wrong += compare(found, expected, f"case {number}:")
    return wrong


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], case: object = "") -> list[str]:
    """Describe each tensor that differs."""
    assert expected.keys() == found.keys()
    distances = {name: (x - found[name]).abs().max().item() for name, x in expected.items()}
    return [f"{case} {name} differs by {distance:.1e}" for name, distance in distances.items() if not distance <= CLOSE]


@pytest.mark.long
@pytest.mark.parametrize(("n", "ring"), [(2, True), (3, False), (4, True)])
def test_loss_and_gradients_equal_those_of_one_process(n: int, ring: bool) -> None:
    assert not differences(n, CASES, ring)


@pytest.mark.soak
@pytest.mark.parametrize(("n", "ring"), [(2, False), (3, True), (4, False), (5, True)])
def test_any_components_equal_those_of_one_process(n: int, ring: bool) -> None:
    assert not differences(n, [*CASES, *COMBINED], ring)


@pytest.mark.long
def test_with_sharded_weights() -> None:
    config, batches = CASES[0].config, [language([7], [2, 4]), language([5], [3])]
    model = built(config)
    n_targets = sum(int(batch.loss_mask.sum()) for batch in batches)
    loss = torch.stack([part_of_loss(model, batch) * batch.loss_mask.sum() / n_targets for batch in batches]).sum()
    expected = loss_and_gradients(model, loss)
    for found in run_on_ranks(4, sharded_results, config, batches):
        assert not compare(found, expected)


def test_a_ring_needs_no_larger_tensor_than_the_residual_stream() -> None:
    """Each head of gathered keys would have 128 x 8 elements, a mask of two rows 2 x 64 x 128, scores of four heads 2 x 4 x 64 x 128."""
    config, batch = described(DECODER | {"n_layers": 1, "d_ff": 8, "max_seq_len": 128}), language([128], [100, 28])
    whole, stream = 2 * 4 * 64 * 128, 2 * 128 * 11
    assert max(run_on_ranks(2, largest_tensors, config, batch, True)) <= stream
    assert max(run_on_ranks(2, largest_tensors, config, batch, False)) >= whole


def test_routers_see_the_tokens_of_a_rank() -> None:
    config, batch = CASES[6]
    model, site = built(config), "decoder.blocks.1.ff.router"
    recorder = ActivationRecorder([site])
    model(batch, recorder)
    routed = recorder.activations[site][batch.loss_mask]
    expected = loss_and_gradients(model, routed.logsumexp(-1).square().sum())
    for n_tokens, found in run_on_ranks(2, router_counts, config, batch):
        assert n_tokens == len(routed)
        assert not compare(found, expected)
