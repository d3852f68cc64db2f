"""Statistics of heads against loops over every query and key, over batches with padding."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transom
from tests.inspection.lenses.test_rollout import IMAGES, model_of
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, SOURCE, TARGET, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError
from transom.inspection.lenses import head_statistics as lens
from transom.inspection.lenses.head_statistics import delimiter_tokens, head_statistics

DELIMITERS = {"source": [2, 7], "target": [1, 5]}


def by_hand(
    w: torch.Tensor, seen: torch.Tensor, tokens: list[int], delimiters: list[int]
) -> tuple[list[float], list[tuple[int, int, float]]]:
    """Return the sums of one map and its (offset, count, difference from uniform) per visible pair."""
    sums, pairs = [0.0] * 7, []
    for i in range(len(w)):
        keys = [j for j in range(w.shape[1]) if seen[i, j]]
        if len(keys) < 2:
            continue
        row = [float(w[i, j]) for j in keys]
        entropy = -sum(p * math.log(p) for p in row if p)
        before = [p for p, j in zip(row, keys, strict=True) if j == i - 1]
        values = (1, entropy, entropy / math.log(len(keys)), sum(p * abs(i - j) for p, j in zip(row, keys, strict=True)) / sum(row))
        more = (sum(p for p, j in zip(row, keys, strict=True) if tokens[j] in delimiters), sum(before), len(before))
        sums = [a + b for a, b in zip(sums, (*values, *more), strict=True)]
        pairs += [(i - j, 0, p - sum(row) / len(keys)) for p, j in zip(row, keys, strict=True)]
    return sums, pairs


def left_out(pairs: list[tuple[int, int, float]]) -> float:
    """Return the share of variance that the mean of the other pairs at the same offset explains."""
    groups: dict[int, list[float]] = {}
    for offset, _, d in pairs:
        groups.setdefault(offset, []).append(d)
    residual = sum((d - (sum(group) - d) / max(len(group) - 1, 1)) ** 2 for group in groups.values() for d in group)
    return max(1 - residual / sum(d * d for _, _, d in pairs), 0.0)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        (FAMILIES[3], {"position": "alibi"}),
        pytest.param(FAMILIES[0], {"norm_placement": "post"}, marks=pytest.mark.long),
        (ENCODERS[0], {"attention": {"sinks": True, "pattern": {"kind": "window", "size": 2}}}),
    ],
    ids=("decoder", "translator", "encoder"),
)
def test_statistics_are_those_of_loops(family: dict[str, Any], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lens, "MAX_ELEMENTS", 64)  # two rows at a time
    model, batch = model_of(family, **fields)
    batches = [batch, batch_for(model.config, SOURCE, TARGET)] if family["kind"] != "encoder" else [batch]
    report = head_statistics(model, batches, DELIMITERS)
    totals: dict[tuple[str, int], tuple[list[float], list[Any]]] = {}
    for each in batches:
        found = transom.trace(model, each, ["*.weights"])[1]
        for address, weights in found.items():
            path, cross = address.removesuffix(".weights"), ".cross." in address
            queries = each.decoder_input if path.startswith("decoder") else each.source
            keys, side = (each.source, "source") if cross or not path.startswith("decoder") else (queries, "target")
            for row in range(len(weights)):
                for head in range(weights.shape[1]):
                    w = weights[row, head]
                    seen = (queries.segments[row][:, None] > 0) & (keys.segments[row] > 0)
                    if side == "target" or ("pattern" in str(fields) and not cross):
                        seen &= w > 0  # all visible weights of these models are above 0
                    sums, pairs = by_hand(w, seen, keys.tokens[row].tolist(), DELIMITERS[side])
                    before, more = totals.setdefault((path, head), ([0.0] * 7, []))
                    totals[path, head] = [a + b for a, b in zip(before, sums, strict=True)], more + pairs
    assert {(each.address, each.head) for each in report.heads} == set(totals)
    for each in report.heads:
        (n, entropy, share, distance, delimiter, previous, n_previous), pairs = totals[each.address, each.head]
        expected = (n, entropy / n, share / n, distance / n, previous / max(n_previous, 1), delimiter / n, left_out(pairs))
        assert each[2:] == pytest.approx(expected, rel=1e-9, abs=1e-12), each


def test_similarity_is_the_mean_cosine_of_rows() -> None:
    model, batch = model_of(FAMILIES[0])
    report = head_statistics(model, [batch])
    found = transom.trace(model, batch, ["decoder.blocks.*.attn.weights"])[1]
    maps = torch.cat(list(found.values()), 1)  # (batch, heads, query, key)
    rows = [(text, query) for text, n in ((0, 4), (1, 2)) for query in range(1, n)]
    names = [(each.address, each.head) for each in report.heads]
    for first, second in ((0, 7), (3, 3), (5, 11)):
        cosines = [torch.cosine_similarity(maps[text, first, query], maps[text, second, query], dim=0) for text, query in rows]
        place = [names.index((f"decoder.blocks.{head // 6}.attn", head % 6)) for head in (first, second)]
        assert float(report.similarity[place[0], place[1]]) == pytest.approx(float(torch.stack(cosines).mean()), rel=1e-12)
    encoder, decoder = names.index(("encoder.blocks.0.attn", 0)), names.index(("decoder.blocks.0.attn", 0))
    assert bool(report.similarity[encoder, decoder].isnan())


@pytest.mark.parametrize("pooling", every(2, ["cls", "mean"]))
def test_distances_of_patches(pooling: str) -> None:
    """As in figure 7 of the ViT paper: over patches only, whose centers are in a grid."""
    torch.manual_seed(4)
    config = VisionTransformerConfig.model_validate(IMAGES | {"pooling": pooling})
    model = built(config)
    batch = model.as_batch(torch.rand(2, config.channels, 8, 8, dtype=torch.float64))
    extra = int(pooling == "cls")
    found = transom.trace(model, batch, ["attn.weights"])[1]
    for each in head_statistics(model, [batch]).heads:
        w = found[f"{each.address}.weights"][:, each.head, extra:, extra:]
        w = w / w.sum(-1, keepdim=True)
        distances = [[math.dist(divmod(i, 4), divmod(j, 4)) for j in range(16)] for i in range(16)]
        assert each.distance == pytest.approx(float((w * torch.tensor(distances)).sum(-1).mean()), rel=1e-6)
        assert each.delimiter == 0.0 and 0 <= each.positional < 1


@pytest.mark.parametrize("family", ENCODERS[-1:], ids=lambda each: f"{each['kind']} {each.get('pooling', '')}")
def test_every_encoder_has_statistics(family: dict[str, Any]) -> None:
    model, batch = model_of(family)
    heads = head_statistics(model, [batch]).heads
    assert len(heads) == 12 and all(0 < each.entropy_share <= 1 and each.n_queries > 0 for each in heads)


def test_delimiters_are_special_tokens_and_tokens_without_letters() -> None:
    run = SimpleNamespace(tokenizer=Tokenizer.from_dict({"kind": "char", "lowercase": False, "units": ["c", " ", ".", "3"]}))
    assert delimiter_tokens(run) == {"source": [1, 2, 5, 6], "target": [1, 2, 5, 6]}
    assert delimiter_tokens(None) == {"source": [1, 2], "target": [1, 2]}


def test_what_has_no_statistics_is_refused() -> None:
    config = described(SET_RECURRENT[0])
    with pytest.raises(ConfigError, match="expected a model with attention, found one of kind 'recurrent-seq2seq'"):
        head_statistics(built(config), [batch_for(config)])
    model, _ = model_of(FAMILIES[3])
    one = PaddedSequences.pad([[2]])
    for batches in ([], [LanguageBatch(one, one.tokens, (0,))]):
        with pytest.raises(ConfigError, match="batches: expected texts of at least two tokens, or images, found none"):
            head_statistics(model, batches)
