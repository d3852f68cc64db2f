"""Heads that are built by hand for a role get exactly this role."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.inspection.lenses.test_rollout import IMAGES, model_of
from tests.models.combinations import FAMILIES, described
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.tokenizer.special_tokens import EOS
from transom.inspection.lenses.head_roles import THRESHOLDS, copying_scores, head_scores, repeat_scores
from transom.inspection.lenses.head_statistics import HeadStatistics, head_statistics
from transom.models.base import Network
from transom.models.build import build_model

VOCAB, LENGTH = 28, 32
TOKEN, PLACE, BEFORE = 0, VOCAB, VOCAB + LENGTH
"""First dimension of the one-hot vectors of the token, of its position, and of the token before it."""
WIDTH = BEFORE + VOCAB
SHARP = 30 * math.sqrt(WIDTH)
"""Scores are 30 or 0."""


def blank_model() -> Network:
    """Build a model of two blocks of one head, without norms, whose residual stream is one-hot; all other weights are 0."""
    fields = {"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB, "d_model": WIDTH, "n_heads": 1, "d_ff": 2, "max_seq_len": LENGTH}
    parts = {"norm": "none", "norm_placement": "pre", "position": "learned", "tie_embeddings": False, "attention": {"qkv_bias": True}}
    model = build_model(described(fields | parts)).double().eval()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    modules: Any = model
    modules.embedding.tokens.weight.data[:, TOKEN : TOKEN + VOCAB] = torch.eye(VOCAB) / modules.embedding.scale
    modules.embedding.position.table.weight.data[:, PLACE : PLACE + LENGTH] = torch.eye(LENGTH)
    modules.unembedding.weight.data[:, TOKEN : TOKEN + VOCAB] = torch.eye(VOCAB)
    return model


def shift(size: int, to: int, frm: int, by: int = 0) -> Tensor:
    """Return the matrix that moves entry i of the one-hot vector at ``frm`` to entry i + by at ``to``."""
    w = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for i in range(size):
        if 0 <= i + by < size:
            w[to + i + by, frm + i] = 1.0
    return w


def attends_back(attn: Any, by: int) -> None:
    attn.q.weight.data, attn.k.weight.data = SHARP * shift(LENGTH, PLACE, PLACE, -by), shift(LENGTH, PLACE, PLACE)


def previous(attn: Any) -> None:
    """Attend to the token before, and write it down."""
    attends_back(attn, 1)
    attn.v.weight.data, attn.o.weight.data = shift(VOCAB, TOKEN, TOKEN), shift(VOCAB, BEFORE, TOKEN)


def positional(attn: Any) -> None:
    attends_back(attn, 2)


def delimiter(attn: Any) -> None:
    attn.q.bias.data[0] = SHARP
    attn.k.weight.data[0, EOS] = 1.0


def duplicate(attn: Any) -> None:
    """Attend to the same token at another position."""
    attn.q.weight.data = SHARP * (shift(VOCAB, TOKEN, TOKEN) - shift(LENGTH, PLACE, PLACE))
    attn.k.weight.data = shift(VOCAB, TOKEN, TOKEN) + shift(LENGTH, PLACE, PLACE)


def induction(attn: Any) -> None:
    """Attend to the token whose predecessor, as the head below wrote down, is the query's token."""
    attn.q.weight.data, attn.k.weight.data = SHARP * shift(VOCAB, TOKEN, TOKEN), shift(VOCAB, TOKEN, BEFORE)


def copying(attn: Any) -> None:
    """Attend to all tokens alike, and make them more probable."""
    attn.v.weight.data, attn.o.weight.data = shift(VOCAB, TOKEN, TOKEN), shift(VOCAB, TOKEN, TOKEN)


def nothing(attn: Any) -> None:
    """Attend to all tokens alike."""


def texts() -> LanguageBatch:
    draw = torch.Generator().manual_seed(5)
    rows = [[EOS, *torch.randint(4, VOCAB, (LENGTH - 1,), generator=draw).tolist()] for _ in range(6)]
    sequences = PaddedSequences.pad(rows)
    return LanguageBatch(sequences, sequences.tokens, (0,))


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        (previous, induction, [("previous-token",), ("induction",)]),
        (positional, delimiter, [("positional",), ("delimiter",)]),
        (duplicate, copying, [("duplicate-token",), ("copying",)]),
        (nothing, nothing, [(), ()]),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_a_head_has_the_role_that_it_was_built_for(below: Any, above: Any, expected: list[tuple[str, ...]]) -> None:
    model: Any = blank_model()
    below(model.decoder.blocks[0].attn)
    above(model.decoder.blocks[1].attn)
    scores = head_scores(model, head_statistics(model, [texts()]).heads)
    assert [each.roles for each in scores] == expected, scores
    for each, roles in zip(scores, expected, strict=True):
        for role in THRESHOLDS:
            score = each.score(role)
            assert score is not None
            assert score > 0.9 if role in roles else score < 0.3 or (role, roles) == ("positional", ("previous-token",)), (role, each)


@torch.no_grad()
def test_copying_is_the_ratio_of_eigenvalues_of_the_whole_matrix() -> None:
    """All eigenvalues of the matrix over the vocabulary, with grouped heads and the gains of both norms."""
    model, _ = model_of(FAMILIES[4], norm="rmsnorm", norm_placement="pre")
    m: Any = model
    assert model.config.n_heads == 6 and model.config.n_kv_heads == 3
    for (path, head), score in copying_scores(model).items():
        block = model.get_submodule(path.removesuffix(".attn"))
        attn: Any = model.get_submodule(path)
        d, v = attn.d_value, head // 2
        w_v, w_o = attn.v.weight[v * d : (v + 1) * d].T, attn.o.weight[:, head * d : (head + 1) * d].T
        e = m.embedding.tokens.weight @ torch.diag(block.attn_residual.norm.weight)
        u = torch.diag(m.decoder.norm.weight) @ m.unembedding.weight.T
        values = torch.linalg.eigvals(e @ w_v @ w_o @ u)
        assert score == pytest.approx(float(values.sum().real / values.abs().sum()), abs=1e-6)


def test_scores_without_a_meaning_are_none() -> None:
    model, batch = model_of(FAMILIES[0])
    scores = {(each.address, each.head): each for each in head_scores(model, head_statistics(model, [batch]).heads)}
    cross = scores["decoder.blocks.1.cross", 0]
    assert (cross.previous_token, cross.positional, cross.induction, cross.copying) == (None,) * 4 and cross.delimiter is not None
    own = scores["encoder.blocks.0.attn", 2]
    assert own.copying is None and own.induction == repeat_scores(model)["encoder.blocks.0.attn", 2][0]
    config = VisionTransformerConfig.model_validate(IMAGES)
    images = build_model(config)
    heads = [HeadStatistics("encoder.blocks.0.attn", 0, 3, 1.0, 0.5, 1.0, 0.9, 0.0, 0.8)]
    (of_image,) = head_scores(images, heads)
    assert of_image.roles == ("positional",) and (of_image.previous_token, of_image.delimiter, of_image.induction) == (None, None, None)
