"""Approximations of attention: fast paths against the explicit weights, with packed and padded rows, chunks and decoding steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from transom.config.approximations import ApproximationConfig, LinearAttentionConfig, LinformerConfig, NystromConfig, PerformerConfig
from transom.config.model import DecoderConfig, MaskedLMConfig
from transom.layers.approximations.approximate_attention import ApproximateAttention, build_approximation, build_attention
from transom.layers.approximations.approximation import Approximation
from transom.layers.approximations.linear_attention import CHUNK, MAX_EXPONENT, LinearAttention
from transom.layers.approximations.linear_attention import Performer as PerformerLayer
from transom.layers.attention import Attention, repeat_kv
from transom.layers.cache import KeyValues, LinearAttentionCache, LinearAttentionState
from transom.layers.context import AttentionContext, SegmentMask

LONG = 2 * CHUNK + 22
CLOSE = {"rtol": 0, "atol": 1e-10}
LOOKING_BACK = [
    LinearAttentionConfig(),
    LinearAttentionConfig(feature_map="relu"),
    PerformerConfig(n_features=5),
    PerformerConfig(n_features=3, orthogonal=False),
]
ALL = [*LOOKING_BACK, LinformerConfig(rank=5), NystromConfig(n_landmarks=7), NystromConfig(n_landmarks=200, n_iterations=2)]


def built(config: ApproximationConfig) -> Approximation:
    torch.manual_seed(1)
    layer = build_approximation(config, 4, LONG).double()
    if isinstance(layer, PerformerLayer):
        layer.sample_projections()
    return layer


def draws(n_queries: int, n_keys: int | None = None, rows: int = 2) -> list[Tensor]:
    torch.manual_seed(2)
    shapes = (rows, 4, n_queries, 4), (rows, 2, n_keys or n_queries, 4), (rows, 2, n_keys or n_queries, 3)
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def segments(*rows: list[int]) -> Tensor:
    """Return segment ids of texts with given lengths per row, followed by padding."""
    length = max(map(sum, rows))
    numbered = [[number for number, n in enumerate(row, 1) for _ in range(n)] for row in rows]
    return torch.tensor([each + [0] * (length - len(each)) for each in numbered])


def written_out(reach: SegmentMask) -> AttentionContext:
    mask = (reach.queries[:, :, None] == reach.keys[:, None])[:, None]
    if reach.causal:
        mask = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return AttentionContext(reach.queries > 0, mask=mask)


def assert_equal_to_weights(layer: Approximation, q: Tensor, k: Tensor, v: Tensor, reach: SegmentMask) -> None:
    """Compare outputs and all gradients of the fast path with those of the explicit weights."""
    results = []
    for z in (layer(q, k, v, reach), layer.implied_weights(q, k, written_out(reach)) @ repeat_kv(v, q.shape[1])):
        learned = [q, k, v, *layer.parameters()]
        torch.manual_seed(3)
        results.append([z, *torch.autograd.grad((z * torch.randn(z.shape, dtype=z.dtype)).sum(), learned)])
    for fast, slow in zip(*results, strict=True):
        assert torch.allclose(fast, slow, **CLOSE)
    assert (results[0][0].abs().amax((1, 3)) > 0).equal((reach.queries > 0).expand(len(q), -1)), "padding outputs 0, tokens do not"


PACKED = {
    "one text": segments([LONG], [LONG]),
    "padded": segments([LONG], [31]),
    "packed": segments([40, 3, 100], [LONG - 80, 70]),
    "texts of a chunk": segments([CHUNK, CHUNK, 22], [2 * CHUNK]),
    "many short texts": segments([3] * 50, [1, 60, 80]),
}


@pytest.mark.parametrize("rows", PACKED)
@pytest.mark.parametrize("config", LOOKING_BACK, ids=str)
def test_chunks_equal_the_weights_written_out(config: ApproximationConfig, rows: str) -> None:
    place = PACKED[rows]
    layer = built(
        config if config.kind == "performer" else LinearAttentionConfig()
    )  # with relu, some queries have no visible key: see the next test
    assert_equal_to_weights(layer, *draws(place.shape[1]), SegmentMask(place, place, causal=True))


@pytest.mark.parametrize("rows", PACKED)
@pytest.mark.parametrize("config", ALL, ids=str)
def test_texts_see_all_of_themselves(config: ApproximationConfig, rows: str) -> None:
    place = PACKED[rows]
    q, k, v = draws(place.shape[1])
    if config == LinearAttentionConfig(feature_map="relu"):
        q, k = (q.detach() + 2).requires_grad_(), (k.detach() + 2).requires_grad_()
    assert_equal_to_weights(built(config), q, k, v, SegmentMask(place, place, causal=False))


@pytest.mark.parametrize("config", [LinearAttentionConfig(), PerformerConfig(n_features=5), LinformerConfig(rank=5)], ids=str)
def test_another_sequence_is_seen_by_its_own_texts(config: ApproximationConfig) -> None:
    for queries, keys in ((segments([5], [3]), segments([4], [7])), (segments([5, 2], [3, 3, 1]), segments([4, 9], [1, 2, 6]))):
        assert_equal_to_weights(built(config), *draws(queries.shape[1], keys.shape[1]), SegmentMask(queries, keys, causal=False))


@pytest.mark.parametrize("config", ALL, ids=str)
@torch.no_grad()
def test_packed_texts_are_as_alone_whatever_stands_in_the_padding(config: ApproximationConfig) -> None:
    layer, place = built(config), segments([9, 4, 12], [7, 8])
    q, k, v = draws(place.shape[1])
    packed = layer(q, k, v, SegmentMask(place, place, causal=False))
    for row, text in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2)):
        inside = place[row] == text
        alone = layer(*(x[row : row + 1, :, inside] for x in (q, k, v)))
        assert torch.allclose(packed[row, :, inside], alone[0], **CLOSE)
    q, k, v = (torch.where((place > 0)[:, None, :, None], x, 1e6) for x in (q, k, v))
    assert torch.allclose(layer(q, k, v, SegmentMask(place, place, causal=False)), packed, **CLOSE)


@pytest.mark.parametrize("config", LOOKING_BACK, ids=str)
@torch.no_grad()
def test_steps_of_any_size_go_on_from_the_sums(config: ApproximationConfig) -> None:
    layer, place = built(config), torch.ones(2, LONG, dtype=torch.long)
    assert isinstance(layer, LinearAttention)
    q, k, v = draws(LONG)
    whole, parts = layer(q, k, v, SegmentMask(place, place, causal=True)), []
    sums, start = LinearAttentionState(torch.zeros(2, 2, layer.features, 4, dtype=torch.float64)), 0
    for n in (1, 5, CHUNK, CHUNK + 3, 1, LONG - 2 * CHUNK - 10):
        now = slice(start, start + n)
        z, sums = layer.chunked_scan(q[:, :, now], k[:, :, now], v[:, :, now], place[:1, now], sums)
        parts.append(z)
        start += n
    assert start == LONG and torch.allclose(torch.cat(parts, 2), whole, **CLOSE)
    assert torch.allclose(sums.sums, layer.compute_state(k, v).sums, **CLOSE)


def test_the_cache_of_sums_writes_reads_and_reorders() -> None:
    cache = LinearAttentionCache(3, 2, 5, 4, like=torch.zeros((), dtype=torch.bfloat16))
    assert cache.read().sums.dtype == torch.float32 and cache.read().sums.shape == (3, 2, 5, 5) and not cache.read().sums.any()
    sums = torch.randn(3, 2, 5, 5)
    cache.write(LinearAttentionState(sums), 4)
    cache.write(LinearAttentionState(sums), 2)
    cache.reorder(torch.tensor([2, 0]))
    assert cache.length == 6 and torch.equal(cache.read().sums, sums[[2, 0]])


@torch.no_grad()
def test_beams_share_their_source_s_sums() -> None:
    torch.manual_seed(1)
    c = DecoderConfig.model_validate({"d_model": 6, "n_heads": 2, "attention": {"approximation": "linear"}})
    layer = ApproximateAttention(c).double()
    memory, x = torch.randn(2, 4, 6).double(), torch.randn(6, 1, 6).double()  # three beams per source
    place = segments([4], [2])
    shared = layer(x, AttentionContext(mask=torch.ones(1, 1, 1, 4, dtype=torch.bool)), layer.project_memory(memory, place))[0]
    reach = SegmentMask(torch.ones(6, 1, dtype=torch.long), place.repeat_interleave(3, 0), causal=False)
    assert torch.allclose(shared, layer(x, AttentionContext(segment_mask=reach), memory.repeat_interleave(3, 0))[0], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1e-3, 30.0, 1e3])
@pytest.mark.parametrize(
    "config", [LinearAttentionConfig(), LinearAttentionConfig(feature_map="relu"), PerformerConfig(n_features=64)], ids=str
)
def test_no_query_or_key_is_too_long_for_it(config: ApproximationConfig, size: float, causal: bool, dtype: torch.dtype) -> None:
    layer, place = built(config).to(dtype), torch.ones(2, 200, dtype=torch.long)
    q, k, v = ((size * x).detach().to(dtype).requires_grad_() for x in draws(200))
    z = layer(q, k, v, SegmentMask(place, place, causal))
    z.sum().backward()
    assert z.isfinite().all() and all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert z.abs().max() <= v.abs().max() * 1.01, "averages of values are bounded by them"


def test_a_query_that_sees_nothing_gathers_nothing() -> None:
    layer, q = built(LinearAttentionConfig(feature_map="relu")), draws(5)
    q[0] = (-q[0].detach().abs()).requires_grad_()
    z = layer(*q)
    z.sum().backward()
    assert (z == 0).all() and all(x.grad is not None and x.grad.isfinite().all() for x in q)


def test_a_key_s_exponent_is_bounded() -> None:
    layer = built(PerformerConfig(n_features=5))
    assert isinstance(layer, PerformerLayer)
    far = layer.key_features(torch.full((1, 1, 1, 4), 1e3, dtype=torch.float64))
    assert torch.allclose(far.log(), torch.full_like(far, -MAX_EXPONENT))


@torch.no_grad()
def test_what_comes_after_changes_no_bit() -> None:
    place = torch.ones(2, LONG, dtype=torch.long)
    for config in LOOKING_BACK:
        layer, (q, k, v) = built(config), draws(LONG)
        before = layer(q, k, v, SegmentMask(place, place, causal=True))
        k[:, :, 100:] += 3
        v[:, :, 100:] -= 1
        after = layer(q, k, v, SegmentMask(place, place, causal=True))
        assert torch.equal(before[:, :, :100], after[:, :, :100]) and not torch.allclose(before[:, :, 100:], after[:, :, 100:])


@torch.no_grad()
def test_tokens_that_ask_nothing_are_kept_as_those_that_do() -> None:
    torch.manual_seed(1)
    layer = ApproximateAttention(
        DecoderConfig.model_validate({"d_model": 6, "n_heads": 2, "attention": {"approximation": "linear"}})
    ).double()
    x, place = torch.randn(2, 5, 6).double(), torch.ones(1, 5, dtype=torch.long)
    ctx = AttentionContext(segment_mask=SegmentMask(place[:, :3], place[:, :3], causal=True))
    asked, kept = layer.new_cache(2, 5, x), layer.new_cache(2, 5, x)
    layer(x[:, :3], replace(ctx, cache=asked))
    layer.update_cache(x[:, :1], replace(ctx, cache=kept))
    layer.update_cache(x[:, 1:3], replace(ctx, cache=kept))
    assert isinstance(asked, LinearAttentionCache) and isinstance(kept, LinearAttentionCache) and asked.length == kept.length == 3
    assert torch.allclose(asked.read().sums, kept.read().sums, **CLOSE) and asked.read().sums.abs().min() > 0


def test_draws_are_the_seed_s_and_saved() -> None:
    c = DecoderConfig.model_validate(
        {"d_model": 8, "n_heads": 2, "vocab_size": 9, "n_layers": 2, "attention": {"approximation": "performer"}}
    )
    from transom.models.build import build_model, build_uninitialized

    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(build_model(c).state_dict())
    names = [name for name in models[0] if name.endswith("approximation.w")]
    assert len(names) == 2 and all(torch.equal(models[0][name], models[1][name]) for name in names)
    assert not torch.equal(models[0][names[0]], models[2][names[0]]) and not torch.equal(models[0][names[0]], models[0][names[1]])
    state = torch.get_rng_state()
    build_uninitialized(c)
    assert torch.equal(torch.get_rng_state(), state), "a model built for loading draws no random numbers"


def test_exact_attention_is_built_where_nothing_is_approximated() -> None:
    fields: dict[str, Any] = {"d_model": 8, "n_heads": 2}
    assert type(build_attention(MaskedLMConfig.model_validate(fields))) is Attention
    assert (
        type(build_attention(MaskedLMConfig.model_validate(fields | {"attention": {"approximation": "nystrom"}}))) is ApproximateAttention
    )
    layer = Attention(DecoderConfig.model_validate(fields))
    assert isinstance(layer.project_memory(torch.zeros(1, 2, 8), torch.ones(1, 2, dtype=torch.long)), KeyValues)
