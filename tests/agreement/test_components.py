"""Components against the transformers library, PyTorch, and explicit formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, LlamaConfig, MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_attention
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func
from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func
from transformers.models.t5.modeling_t5 import T5Attention

from transom.config import components, moe
from transom.config.model import Seq2SeqConfig
from transom.kernels.attention import fused_attention, short_attention
from transom.layers.activation import ACTIVATIONS, GATES
from transom.layers.attention import AttentionArgs, explicit_attention, scaled_dot_product_attention
from transom.layers.context import AttentionContext, StackContext
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture_of_experts import MixtureOfExperts, expert_load, load_balancing_loss, router_z_loss_sum
from transom.layers.norm import build_norm
from transom.layers.position_encoding import RelativePositionBias, Rotary, apply_rotary, build_position_encoding, relative_position_bucket
from transom.layers.stack import Stack

DOUBLE = {"rtol": 0, "atol": 1e-10}


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def config(**fields: Any) -> Seq2SeqConfig:
    return Seq2SeqConfig.model_validate({"d_model": 32, "n_heads": 4, "max_seq_len": 64} | fields)


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    """Compute position tables in float64 too."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    yield
    torch.set_default_dtype(torch.float32)


def test_rms_norm_is_llamas_and_torchs() -> None:
    ours, llamas, torchs = build_norm(components.RmsNormConfig(eps=1e-3), 8), LlamaRMSNorm(8, 1e-3), nn.RMSNorm(8, 1e-3)
    x, gain = draw(3, 5, 8), draw(8)
    for norm in (ours, llamas, torchs):
        norm.weight.data = gain
    assert torch.allclose(ours(x), torchs(x), **DOUBLE)
    assert torch.allclose(ours(x), gain * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt(), **DOUBLE)
    assert torch.allclose(ours(x), llamas(x), rtol=0, atol=1e-6)  # theirs works in float32


def test_rms_norm_keeps_float32_statistics_in_bf16() -> None:
    norm, x = build_norm(components.RmsNormConfig(), 512), (100 * torch.randn(4, 512)).bfloat16()
    assert torch.allclose(norm.bfloat16()(x).double(), norm.double()(x.double()), atol=2e-2)


def test_dynamic_tanh_is_its_formula() -> None:
    norm, x = build_norm(components.DynamicTanhConfig(alpha=0.7), 8), draw(3, 5, 8)
    norm.weight.data, norm.bias.data = draw(8), draw(8)
    assert torch.allclose(norm(x), norm.weight * (torch.exp(1.4 * x) - 1) / (torch.exp(1.4 * x) + 1) + norm.bias, **DOUBLE)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("relu", lambda x: x * (x > 0)),
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("gelu-tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("squared-relu", lambda x: (x * (x > 0)) ** 2),
        ("glu", lambda x: 1 / (1 + torch.exp(-x))),
        ("reglu", lambda x: x * (x > 0)),
        ("geglu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("geglu-tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("swiglu", lambda x: x / (1 + torch.exp(-x))),
    ],
)
def test_activations_and_gates_are_their_formulas(kind: str, formula: Any) -> None:
    x = draw(2, 3, 6)
    assert torch.allclose((ACTIVATIONS | GATES)[kind](x), formula(x), **DOUBLE)
    gated = kind in GATES
    config = (
        components.GatedFeedForwardConfig.model_validate({"kind": kind, "bias": True})
        if gated
        else components.FeedForwardConfig.model_validate({"kind": kind})
    )
    layer = build_feed_forward(config, 6, 7, 0.0)
    hidden = formula((layer.gate if gated else layer.up)(x)) * (layer.up(x) if gated else 1)
    assert torch.allclose(layer(x), layer.down(hidden), **DOUBLE)


def test_a_swiglu_network_is_llamas() -> None:
    llamas = LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12, hidden_act="silu"))
    ours, x = build_feed_forward(components.GatedFeedForwardConfig(), 8, 12, 0.0), draw(2, 3, 8)
    ours.load_state_dict({name.replace("_proj", ""): value for name, value in llamas.state_dict().items()})
    assert torch.allclose(ours(x), llamas(x), **DOUBLE)


def give_experts(ours: MixtureOfExperts, theirs: nn.Module) -> None:
    """Copy our experts into transformers' layer, which stacks them and concatenates gate and up."""
    theirs.gate.weight.data = ours.router.weight.data
    theirs.experts.gate_up_proj.data = torch.stack([torch.cat([each.gate.weight, each.up.weight]) for each in ours.experts])
    theirs.experts.down_proj.data = torch.stack([each.down.weight for each in ours.experts])


def test_a_mixture_is_mixtrals_and_its_losses_are_theirs() -> None:
    c = MixtralConfig(hidden_size=8, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2, num_attention_heads=2)
    ours, theirs, x = build_feed_forward(moe.MoeConfig(n_experts=4), 8, 12, 0.0), MixtralSparseMoeBlock(c), draw(3, 5, 8)
    assert isinstance(ours, MixtureOfExperts)
    give_experts(ours, theirs)
    assert torch.allclose(ours(x), theirs(x), rtol=0, atol=1e-6)  # their router works in float32
    logits = ours.router(x).view(15, 4)
    counts = expert_load(ours.route(logits).experts, torch.ones(15, dtype=torch.bool), 4).double()
    balance = load_balancing_loss(counts, ours.router_probs(logits).sum(0), 15)
    theirs_of_both = load_balancing_loss_func((logits,), 4, 2).item()  # theirs adds up the shares of first and second choices
    assert 2 * balance.item() == pytest.approx(theirs_of_both, abs=1e-6)
    assert torch.allclose(router_z_loss_sum(logits) / 15, router_z_loss_func(logits[None]), **DOUBLE)


def test_a_mixture_balanced_by_biases_is_deepseeks() -> None:
    sizes = {"hidden_size": 8, "moe_intermediate_size": 6, "n_routed_experts": 4, "num_local_experts": 4, "n_shared_experts": 2}
    c = DeepseekV3Config(**sizes, num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True)
    config = moe.MoeConfig(n_experts=4, n_shared_experts=2, scoring_func="sigmoid", load_balancing=moe.BiasBalancingConfig())
    ours, theirs, x = build_feed_forward(config, 8, 6, 0.0), DeepseekV3MoE(c), draw(3, 5, 8)
    assert isinstance(ours, MixtureOfExperts) and ours.bias is not None and ours.shared is not None
    give_experts(ours, theirs)
    theirs.shared_experts.load_state_dict({f"{name}_proj.weight": getattr(ours.shared, name).weight for name in ("gate", "up", "down")})
    for bias in (torch.zeros(4), torch.tensor([0.4, -0.3, 0.0, 0.2])):
        ours.bias.copy_(bias)
        theirs.gate.e_score_correction_bias.copy_(bias)
        assert torch.allclose(ours(x), theirs(x), rtol=0, atol=1e-6)  # their router works in float32


SCALINGS = {
    "none": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_rotary_positions_are_llamas(scaling: str, base: float) -> None:
    c = config(position={"kind": "rotary", "rope_theta": base, "rope_scaling": scaling} | ({} if scaling == "none" else {"factor": 4.0}))
    rope = SCALINGS[scaling] | {"rope_theta": base}
    llama = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=64, rope_parameters=rope)
    if scaling == "none":
        theta, scale = base ** (-torch.arange(0, 8, 2) / 8), 1.0
    else:
        theta, scale = ROPE_INIT_FUNCTIONS[scaling](llama, torch.device("cpu"))
    positions = torch.tensor([[0, 1, 5, 63]])
    angles = positions[..., None] * torch.cat([theta, theta]).double()
    q, k = draw(2, 4, 4, 8), draw(2, 2, 4, 8)
    expected = apply_rotary_pos_emb(q, k, angles.cos() * scale, angles.sin() * scale)
    rotary = build_position_encoding(c, causal=True).rotary(positions)
    for ours, theirs in zip((apply_rotary(q, rotary), apply_rotary(k, rotary)), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10 if scaling == "none" else 1e-5)  # their frequencies are float32


def test_ntk_scaling_keeps_the_fastest_turn_and_stretches_the_slowest() -> None:
    plain, scaled = (
        build_position_encoding(config(position={"kind": "rotary"} | more), True) for more in ({}, {"rope_scaling": "ntk", "factor": 4.0})
    )
    assert isinstance(plain, Rotary) and isinstance(scaled, Rotary)
    turns = [torch.atan2(p.sin[0, 1], p.cos[0, 1]) for p in (plain, scaled)]
    assert turns[0][0] == pytest.approx(turns[1][0]) and float(turns[0][-1] / turns[1][-1]) == pytest.approx(4.0)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_products_of_turned_vectors_depend_on_distance_only(share: float) -> None:
    position = build_position_encoding(config(position={"kind": "rotary", "partial_rotary_factor": share}), True)
    q, k = draw(1, 4, 1, 8), draw(1, 4, 1, 8)

    def product(i: int, j: int) -> Tensor:
        q_i, k_j = (apply_rotary(x, position.rotary(torch.tensor([[at]]))) for x, at in ((q, i), (k, j)))
        return (q_i * k_j).sum(-1)

    assert torch.allclose(product(3, 1), product(60, 58), **DOUBLE)
    assert not torch.allclose(product(3, 1), product(3, 2), **DOUBLE)
    stays = apply_rotary(q, position.rotary(torch.tensor([[9]])))[..., int(8 * share) :]
    assert torch.equal(stays, q[..., int(8 * share) :])


@pytest.mark.parametrize("n_heads", [1, 2, 4, 6, 8, 12])
def test_alibi_is_blooms(n_heads: int) -> None:
    """Bloom adds slope * key position, which differs from slope * (key - query) by a constant per row, which the softmax cancels."""
    position = build_position_encoding(config(n_heads=n_heads, d_head=8, position="alibi"), causal=True)
    theirs = build_alibi_tensor(torch.ones(1, 7), n_heads, torch.float64).view(1, n_heads, 1, 7)
    places = torch.arange(7)[None]
    ours = position.bias(places, places, *position.bias_parameters)
    assert ours is not None and (ours <= 0).all()
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    softmaxes = [bias.expand(1, n_heads, 7, 7).masked_fill(~seen, -math.inf).softmax(-1) for bias in (ours, theirs)]
    assert torch.allclose(*softmaxes, rtol=0, atol=1e-7)  # their slopes are float32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (5, 9)])
def test_relative_buckets_are_t5s(causal: bool, n_buckets: int, max_distance: int) -> None:
    offsets = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(offsets, not causal, n_buckets, max_distance)
    assert torch.equal(relative_position_bucket(offsets, n_buckets, max_distance, causal), theirs)


def test_relative_biases_stand_at_their_offsets() -> None:
    position = build_position_encoding(config(position="relative"), causal=False)
    assert isinstance(position, RelativePositionBias)
    queries, keys = torch.tensor([[4, 0]]), torch.tensor([[1, 2, 9]])
    bias = position.bias(queries, keys, *position.bias_parameters)
    for i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        number = relative_position_bucket(keys[0, j] - queries[0, i], position.n_buckets, position.max_distance, False)
        assert torch.equal(bias[0, :, i, j], position.table.weight[number])


def theirs_of(attention: Any, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **options: Any) -> Tensor:
    """Call transformers' eager attention, which takes an additive mask and returns (batch, length, heads, width)."""
    bias = torch.zeros(mask.shape).masked_fill(~mask, -1e300)
    return attention(module.eval(), q, k, v, bias, scaling=q.shape[-1] ** -0.5, **options)[0].transpose(1, 2)


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_later_blocks_mix_the_first_ones_values_with_their_own(kind: str) -> None:
    attention = {"value_residual": {"kind": kind, "lambda_1": 0.3, "lambda_2": 0.9}}
    stack = Stack(config(norm_placement="pre", n_kv_heads=2, dropout=0.0, attention=attention), 3, cross=True)
    pairs = [(0.0, 1.0), (0.3, 0.9), (0.3, 0.9)]
    if kind == "learned":
        for i, mix in enumerate(stack.value_residuals, 1):
            pairs[i] = tuple((0.1 * i * torch.tensor([3.0, -7.0])).tolist())
            mix.weight.data = torch.tensor(pairs[i])
    x, memory, seen = draw(2, 5, 32), draw(2, 3, 32), AttentionContext(mask=torch.ones(5, 5, dtype=torch.bool).tril()[None, None])
    expected, values = x, []
    for block, (of_first, of_own) in zip(stack.blocks, pairs, strict=True):
        y = block.attn_residual.norm(expected)
        q, k, v = (part(y).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (block.attn.q, block.attn.k, block.attn.v))
        values.append(v)
        z = explicit_attention(q, k, of_first * values[0] + of_own * v, AttentionArgs(seen.mask))
        expected = expected + block.attn.o(z.transpose(1, 2).flatten(-2))
        expected = expected + block.cross(block.cross_residual.norm(expected), memory=memory)[0]
        expected = expected + block.ff(block.ff_residual.norm(expected))
    assert torch.allclose(stack(x, StackContext(attention_contexts=[seen]), memory), stack.norm(expected), **DOUBLE)


CASES = [(1, 1), (4, 4), (4, 2), (6, 1)]


@pytest.mark.parametrize(("n_heads", "kv_heads"), CASES)
def test_grouped_queries_and_bounded_scores_are_gemmas(n_heads: int, kv_heads: int) -> None:
    q, k, v = draw(2, n_heads, 5, 8), draw(2, kv_heads, 7, 8), draw(2, kv_heads, 7, 8)
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)[None, None]
    module = nn.Module()
    module.num_key_value_groups = n_heads // kv_heads
    for softcap in (None, 0.7):
        theirs = theirs_of(gemma2_attention, module, q, k, v, mask, softcap=softcap)
        assert torch.allclose(
            scaled_dot_product_attention(q, k, v, AttentionArgs(mask, softcap=softcap)), theirs, rtol=0, atol=1e-6
        )  # their softmax is float32
    plain = [path(q, k, v, AttentionArgs(mask)) for path in (explicit_attention, fused_attention, short_attention)]
    step = fused_attention(q[:, :, -1:], k, v, AttentionArgs(mask[:, :, -1:]))
    assert torch.allclose(step, plain[0][:, :, -1:], **DOUBLE)
    by_hand = torch.cat(
        [explicit_attention(q[:, [h]], *(x[:, [h * kv_heads // n_heads]] for x in (k, v)), AttentionArgs(mask)) for h in range(n_heads)], 1
    )
    assert all(torch.allclose(z, by_hand, **DOUBLE) for z in plain)


@pytest.mark.parametrize(("n_heads", "kv_heads"), CASES)
def test_sinks_are_those_of_gpt_oss(n_heads: int, kv_heads: int) -> None:
    q, k, v = draw(2, n_heads, 5, 8), draw(2, kv_heads, 7, 8), draw(2, kv_heads, 7, 8)
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)[None, None]
    module = nn.Module()
    module.num_key_value_groups, module.sinks = n_heads // kv_heads, nn.Parameter(draw(n_heads))
    theirs = theirs_of(gpt_oss_attention, module, q, k, v, mask)
    assert torch.allclose(scaled_dot_product_attention(q, k, v, AttentionArgs(mask, sinks=module.sinks)), theirs, **DOUBLE)
    zero_key = [torch.cat([torch.zeros(2, kv_heads, 1, 8), x], 2) for x in (k, v)]  # a key with score 0 and value 0
    seen = torch.cat([torch.ones(1, 1, 5, 1, dtype=torch.bool), mask], -1)
    nowhere = explicit_attention(q, *zero_key, AttentionArgs(seen))
    assert torch.allclose(scaled_dot_product_attention(q, k, v, AttentionArgs(mask, sinks=torch.zeros(n_heads))), nowhere, **DOUBLE)
