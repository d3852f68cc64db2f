"""Keyed dropout masks: a closed reference, rates, independence, parts of tensors, and equal masks on every attention path."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tests.layers.test_mask_rules import packed, pattern
from tests.models.tiny import seq2seq
from transom.kernels import attention as kernels
from transom.kernels.attention import CpuAttention, attention_by_query_chunks, short_attention
from transom.kernels.block_sparse import plan_tiled_mask, tiled_attention
from transom.layers.attention import Attention, AttentionArgs, explicit_attention
from transom.layers.dispatch import selected_path
from transom.layers.dropout import Dropout, KeyedMasks, dropout, keyed_dropout, keyed_rows, name_dropout_sites, round_probability
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT
from transom.layers.mixture_of_experts import all_experts, grouped_experts
from transom.models.build import build_model

CPU = torch.device("cpu")
KEYS = torch.tensor([5, -7])


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def absorb(key: int, value: int) -> int:
    return mix((key + (value + 1) * 0x9E3779B97F4A7C15) % 2**64)


def kept(key: int, indices: tuple[int, ...], p: float) -> bool:
    """Return whether an element is kept, in plain integers."""
    *outer, token, channel = (0, *indices) if len(indices) == 1 else indices
    for index in outer:
        key = absorb(key, index)
    size = 1 if p >= 1 / 256 else 4
    word = absorb(key, token * 2**32 + channel * size // 8)
    number = (word >> (channel * size % 8 * 8)) % 256**size
    return (number + 256**size // 2) % 256**size < round((1 - p) * 256**size)


@pytest.mark.parametrize("p", [0.25, 26 / 256, 100 / 2**16 / 256])
@pytest.mark.parametrize("shape", [(2,), (2, 21), (2, 3, 17), (2, 3, 2, 9), (2, 2, 2, 2, 3), (0, 4), (2, 0), (2, 3, 0)])
@pytest.mark.parametrize("offsets", [(), (3,), (1, 5), (2, 0, 12)])
def test_masks_are_those_of_the_equation(p: float, shape: tuple[int, ...], offsets: tuple[int, ...]) -> None:
    keys = KEYS[: shape[0]]
    found = KeyedMasks(keys, offsets).draw(torch.empty(shape, dtype=torch.float64), p)
    firsts = (*offsets, 0, 0, 0, 0)[: max(len(shape) - 1, 1)]
    assert found.shape == shape and found.dtype == torch.float64
    for index in product(*map(range, shape)):
        element = tuple(first + i for first, i in zip(firsts, index[1:] or (0,), strict=True))
        assert found[index] == (1 / (1 - p) if kept(int(keys[index[0]]) % 2**64, element, p) else 0), (index, element)


def test_the_keys_are_those_of_the_equation() -> None:
    layer = nn.Sequential(Dropout(0.5), Dropout(0.5))
    name_dropout_sites(layer)
    second = layer[1]
    with keyed_dropout(3, 7, n_copies=2), keyed_rows([40, 2**40, 40, 2**40], CPU):
        masks = [second.dropout_masks(torch.empty(4, 1)) for _ in range(2)]
    for call, found in enumerate(masks):
        assert found is not None
        rows = [absorb(absorb(absorb(absorb(0, 3), 7), sample), copy) for copy in range(2) for sample in (40, 2**40)]
        assert [key % 2**64 for key in found.keys.tolist()] == [absorb(absorb(row, second.site), call) for row in rows]


@pytest.mark.parametrize("p", [1e-4, 1e-3, 1 / 256, 0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_the_rounded_probability(p: float) -> None:
    q = round_probability(p)
    mask = KeyedMasks(torch.arange(64)).draw(torch.empty(64, 128, 256), q)
    dropped = (mask == 0).double()
    assert abs(dropped.mean().item() - q) < 5 * (q * (1 - q) / dropped.numel()) ** 0.5  # five deviations
    per_row = dropped.mean((1, 2))
    assert (per_row - q).abs().max() < 6 * (q * (1 - q) * 64 / dropped.numel()) ** 0.5


def words(step: int = 1, name: str = "a", samples: int = 64, seed: int = 1) -> Tensor:
    """Return the random bytes of one mask, (sample, token, channel), read from its mask at each probability of one bit."""
    layer = nn.ModuleDict({name: Dropout(0.5)})
    name_dropout_sites(layer)
    with keyed_dropout(seed, step), keyed_rows(range(samples), CPU):
        masks = layer[name].dropout_masks(torch.empty(samples, 1))
    assert masks is not None
    levels = torch.arange(1, 256) / 256
    return sum((masks.draw(torch.empty(samples, 16, 64, device=CPU), float(p)) == 0).long() for p in levels)


def chi_square(counts: Tensor) -> float:
    """Return the deviations by which a chi-square statistic of equally likely cells exceeds its expectation."""
    expected = counts.sum() / counts.numel()
    degrees = counts.numel() - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / (2 * degrees) ** 0.5)


def test_bytes_are_uniform_and_independent_of_those_of_neighboring_keys() -> None:
    x = words()
    assert abs(chi_square(x.flatten().bincount(minlength=256).double())) < 5
    neighbors = {
        "sample": (x[1:], x[:-1]),
        "token": (x[:, 1:], x[:, :-1]),
        "channel": (x[..., 1:], x[..., :-1]),
        "word": (x[..., 8:], x[..., :-8]),
        "step": (x, words(step=2)),
        "seed": (x, words(seed=2)),
        "site": (x, words(name="b")),
    }
    for name, (a, b) in neighbors.items():
        pairs = (a // 16 * 16 + b // 16).flatten().bincount(minlength=256).double()
        assert abs(chi_square(pairs)) < 5, name
        low = (a % 16 * 16 + b % 16).flatten().bincount(minlength=256).double()
        assert abs(chi_square(low)) < 5, name


@pytest.mark.parametrize("p", [0.3, 1e-3])
def test_a_part_has_that_part_of_the_mask(p: float) -> None:
    whole = KeyedMasks(KEYS).draw(torch.empty(2, 3, 40, 100), p)
    for h, q, k in [(1, 8, 16), (2, 5, 3), (0, 39, 99)]:
        part = KeyedMasks(KEYS, (h, q, k)).draw(torch.empty(2, 3 - h, 40 - q, 100 - k), p)
        assert torch.equal(part, whole[:, h:, q:, k:])
    assert torch.equal(KeyedMasks(KEYS[1:]).draw(torch.empty(1, 3, 40, 100), p), whole[1:])
    assert torch.equal(KeyedMasks(KEYS).draw(torch.empty(2, 3, 4, 7), p), whole[:, :, :4, :7])


def test_calls_rows_and_copies_differ_and_passes_repeat() -> None:
    layer = Dropout(0.5)
    name_dropout_sites(layer)
    x = torch.ones(4, 3, 64)

    def passed(samples: list[int], step: int = 1, copies: int = 1) -> list[Tensor]:
        with keyed_dropout(1, step, copies), keyed_rows(samples, CPU):
            return [layer(x[: len(samples)]) for _ in range(2)]

    first, again, other = passed([3, 9, 3, 9], copies=2), passed([3, 9, 3, 9], copies=2), passed([3, 9, 3, 9], 2, copies=2)
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)
        assert not torch.equal(a[:2], a[2:]) and not torch.equal(a[0], a[1])
    assert not torch.equal(*first)
    assert torch.equal(passed([9, 3])[0], first[0][:2].flip(0)), "the first copy is that of a batch without copies"


def test_without_keys_of_its_rows_a_module_draws_from_the_generator() -> None:
    named, unnamed, x = Dropout(0.5), Dropout(0.5), torch.ones(2, 50)
    name_dropout_sites(named)

    def drawn(layer: Dropout, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return layer(x)

    expected = drawn(named, x)
    with keyed_rows([1, 2], CPU):
        assert torch.equal(drawn(named, x), expected)
    with keyed_dropout(1, 1):
        assert torch.equal(drawn(named, x), expected)
        with keyed_rows([], CPU):
            assert torch.equal(drawn(named, x), expected)
        with keyed_rows([1, 2], CPU):
            assert not torch.equal(drawn(named, x), expected)
            assert torch.equal(drawn(unnamed, x), expected)
            assert torch.equal(drawn(named, x.repeat(2, 1))[0], drawn(unnamed, x.repeat(2, 1))[0])
            assert torch.equal(drawn(named.eval(), x), x)


def test_a_site_keeps_its_name_in_a_part_of_its_model() -> None:
    model = build_model(seq2seq(n_encoder_layers=3))
    name_dropout_sites(model)
    sites = {name: module.site for name, module in model.named_modules() if isinstance(module, Dropout | Attention)}
    assert len(set(sites.values())) == len(sites) and None not in sites.values()
    part = nn.ModuleList(list(model.encoder.blocks)[1:])
    name_dropout_sites(part)
    assert part[0].attn.site == sites["encoder.blocks.1.attn"]


def heads(n_queries: int, n_keys: int) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = (4, n_queries), (2, n_keys), (2, n_keys)
    return [torch.randn(2, n_heads, length, 5, dtype=torch.float64, requires_grad=True) for n_heads, length in shapes]


def gradients(path: object, inputs: list[Tensor], *given: object) -> list[Tensor]:
    z = path(*inputs, *given)
    return [z, *torch.autograd.grad((z * torch.linspace(-1, 1, z.numel()).view(z.shape)).sum(), inputs)]


@pytest.mark.kernels
@pytest.mark.parametrize("offsets", [(), (2, 3, 5)])
def test_every_attention_path_drops_the_same_weights(monkeypatch: pytest.MonkeyPatch, offsets: tuple[int, ...]) -> None:
    monkeypatch.setattr(kernels, "MAX_CHUNK_WEIGHTS", 2 * 4 * 30 * 7)
    inputs = heads(20, 30)
    mask = torch.rand(2, 1, 20, 30) < 0.7
    args = AttentionArgs(mask, torch.randn(1, 4, 20, 30).double(), 0.25, dropout_masks=KeyedMasks(KEYS, offsets))
    expected = gradients(explicit_attention, inputs, args)
    for path in (short_attention, attention_by_query_chunks):
        for a, b in zip(expected, gradients(path, inputs, args), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)
    assert not torch.allclose(expected[0], explicit_attention(*inputs, args._replace(dropout=0.0)))
    assert selected_path("attention", *inputs, args) == "short"
    with torch.no_grad():
        assert selected_path("attention", *inputs, args) == "query chunks"
        assert selected_path("attention", *inputs, args._replace(dropout=0.0)) == "fused"


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_long_rows_do_not_take_the_fused_kernel(dtype: torch.dtype) -> None:
    q, k = torch.randn(2, 1, 3, 4, dtype=dtype, requires_grad=True), torch.randn(2, 1, 1100, 4, dtype=dtype)
    args = AttentionArgs(dropout=0.25, dropout_masks=KeyedMasks(KEYS))
    assert selected_path("attention", q, k, k, args) == "query chunks"
    assert selected_path("attention", q, k, k, AttentionArgs(dropout=0.25)) == "fused"


SPARSE = {"kind": "any", "patterns": [{"kind": "window", "size": 20}, {"kind": "strided", "stride": 20}]}


@pytest.mark.kernels
@pytest.mark.parametrize("p", [0.25, 1e-3])
@pytest.mark.parametrize("offsets", [(), (1, 2, 8), (0, 0, 3)])
@pytest.mark.parametrize("fields", [{"kind": "full"}, SPARSE, {"kind": "strided", "stride": 7}], ids=["full", "sparse", "strided"])
def test_tiles_drop_the_weights_of_the_reference(fields: object, offsets: tuple[int, ...], p: float) -> None:
    places = packed([70, 60], 20, rows=2)
    inputs = heads(150, 150)
    for family in (CAUSAL_IN_SEGMENT, SAME_SEGMENT):
        rule = family & pattern(fields)
        args = AttentionArgs(dropout=round_probability(p), dropout_masks=KeyedMasks(KEYS, offsets))
        expected = gradients(explicit_attention, inputs, args._replace(mask=rule.dense(places, places)))
        found = gradients(tiled_attention, inputs, plan_tiled_mask(rule, places, places), args)
        for a, b in zip(expected, found, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_weights_of_half_the_heads_queries_or_keys_are_those_of_the_whole() -> None:
    q, k, _ = (x.detach() for x in heads(20, 30))
    whole = CpuAttention(0.25, dropout_masks=KeyedMasks(KEYS)).attention_weights(q, k, None, None).dropout_mask
    part = CpuAttention(0.25, dropout_masks=KeyedMasks(KEYS, (2, 10, 16))).attention_weights(q[:, 2:, 10:], k[:, 1:, 16:], None, None)
    assert whole is not None and part.dropout_mask is not None
    assert torch.equal(part.dropout_mask, whole[:, 2:, 10:, 16:])


def test_an_expert_drops_by_the_token_whichever_others_it_has() -> None:
    moe = {"kind": "moe", "n_experts": 4, "n_shared_experts": 1}
    model = build_model(seq2seq(feed_forward=moe, feed_forward_dropout=0.4)).double().train()
    name_dropout_sites(model)
    layer, x = model.encoder.blocks[0].ff, torch.randn(3, 6, 8, dtype=torch.float64)

    def passed(rows: list[int], path: object, first: int = 0) -> Tensor:
        layer.path, layer.offsets = path, (first,)
        with keyed_dropout(1, 1), keyed_rows(rows, CPU):
            return layer(x[rows, first:])

    whole = passed([0, 1, 2], grouped_experts)
    assert torch.allclose(passed([0, 1, 2], all_experts), whole, rtol=0, atol=1e-12)
    assert torch.allclose(passed([2, 0], grouped_experts), whole[[2, 0]], rtol=0, atol=1e-12)
    assert torch.allclose(passed([0, 1, 2], grouped_experts, 4), whole[:, 4:], rtol=0, atol=1e-12)
    layer.offsets = ()
    assert not torch.allclose(layer(x), whole)


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.randn(2, 5, 9, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25, True, KeyedMasks(KEYS))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(y, x * grad) and set(grad.unique().tolist()) == {0.0, 1 / 0.75}
