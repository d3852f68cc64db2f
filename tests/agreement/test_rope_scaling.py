"""Rotary scalings against the transformers library: frequencies, and logits of tiny models with the same weights, all in float64."""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, modeling_rope_utils
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama

from transom.config.components import RotaryConfig
from transom.config.model import DecoderConfig
from transom.layers.rope_scaling import rotary_frequencies
from transom.models.base import Network
from transom.models.build import build_model

VOCAB, D_HEAD, TRAINED, LONGEST = 31, 8, 8, 32
SHORT, LONG = [1.0, 1.25, 1.5, 2.0], [1.5, 2.0, 3.5, 6.0]
ORIGINAL = {"original_max_position_embeddings": TRAINED}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": ("none", {"rope_type": "default"}),
    "linear": ({"kind": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "dynamic": ({"kind": "dynamic", "factor": 4.0}, {"rope_type": "dynamic", "factor": 4.0}),
    "dynamic, factor 2": (
        {"kind": "dynamic", "factor": 2.0, "original_max_seq_len": TRAINED},
        {"rope_type": "dynamic", "factor": 2.0},
    ),
    "yarn": ({"kind": "yarn", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0, **ORIGINAL}),
    "yarn, betas": (
        {"kind": "yarn", "factor": 3.0, "original_max_seq_len": 20, "beta_fast": 3.0, "beta_slow": 0.3, "attention_factor": 1.25},
        {
            "rope_type": "yarn",
            "factor": 3.0,
            "original_max_position_embeddings": 20,
            "beta_fast": 3.0,
            "beta_slow": 0.3,
            "attention_factor": 1.25,
        },
    ),
    "yarn, not truncated": (
        {"kind": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.01, "mscale": 1.5, "mscale_all_dim": 0.5, "truncate": False},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 2.0,
            "beta_slow": 0.01,
            "mscale": 1.5,
            "mscale_all_dim": 0.5,
            "truncate": False,
            **ORIGINAL,
        },
    ),
    "llama3": (
        {"kind": "llama3", "factor": 4.0},
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    ),
    "llama3, factors": (
        {"kind": "llama3", "factor": 5.0, "low_freq_factor": 0.1, "high_freq_factor": 1.5, "original_max_seq_len": TRAINED},
        {"rope_type": "llama3", "factor": 5.0, "low_freq_factor": 0.1, "high_freq_factor": 1.5, **ORIGINAL},
    ),
    "longrope": (
        {"kind": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_seq_len": TRAINED},
        {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **ORIGINAL},
    ),
    "longrope, factors": (
        {
            "kind": "longrope",
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_seq_len": TRAINED,
            "factor": 16.0,
            "attention_factor": 1.5,
        },
        {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 16.0, "attention_factor": 1.5, **ORIGINAL},
    ),
}
"""Our scaling and theirs, by name; for dynamic, their ``max_position_embeddings`` is the trained length."""


class DoubleTorch(ModuleType):
    """The module torch, in which float32 means float64: their rotary positions and norms compute in float32 whatever the model's type."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let both libraries compute in float64."""
    for module in (modeling_rope_utils, modeling_llama, modeling_gemma3):
        monkeypatch.setattr(module, "torch", DoubleTorch("torch"))
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def llama_config(name: str, base: float = 100.0, **fields: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=D_HEAD,
        max_position_embeddings=TRAINED if name.startswith("dynamic") else LONGEST,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        rope_parameters={"rope_theta": base, **CASES[name][1]},
        **fields,
    )


@pytest.mark.parametrize("name", [name for name in CASES if name != "none"])
@pytest.mark.parametrize("base", [100.0, 10000.0, 5e5])
@pytest.mark.parametrize("length", [1, TRAINED, TRAINED + 1, 20, LONGEST])
def test_frequencies_and_attention_factor_are_theirs(name: str, base: float, length: int) -> None:
    ours, theirs = CASES[name]
    config = RotaryConfig.model_validate({"rope_theta": base, "rope_scaling": ours})
    ((_, scaling),) = config.rotations
    found = rotary_frequencies(scaling, base, D_HEAD, LONGEST, torch.tensor([length]))
    compute = modeling_rope_utils.ROPE_INIT_FUNCTIONS[theirs["rope_type"]]
    theta, scale = compute(llama_config(name, base), torch.device("cpu"), seq_len=length)
    assert theta.dtype == torch.float64 == found.theta.dtype
    assert (found.theta - theta).abs().max() <= 1e-12 and abs(found.scale - scale) <= 1e-12


def from_theirs(theirs: Mapping[str, Tensor], names: Mapping[str, str], n_layers: int, shift: float = 0.0) -> dict[str, Tensor]:
    """Convert the weights of Llama or Gemma to our names; ``shift`` is added to the gains of norms."""
    ours = {
        "embedding.tokens.weight": theirs["model.embed_tokens.weight"],
        "unembedding.weight": theirs["lm_head.weight"],
        "decoder.norm.weight": theirs["model.norm.weight"] + shift,
    }
    names = {**{f"attn.{part}": f"self_attn.{part}_proj" for part in "qkvo"}, **names}
    names = {"ff.gate": "mlp.gate_proj", "ff.up": "mlp.up_proj", "ff.down": "mlp.down_proj", **names}
    for i in range(n_layers):
        for name, their in names.items():
            ours[f"decoder.blocks.{i}.{name}.weight"] = theirs[f"model.layers.{i}.{their}.weight"] + shift * ("norm" in name)
    return ours


def give_weights(theirs: nn.Module, config: DecoderConfig, names: Mapping[str, str], shift: float = 0.0) -> Network:
    """Draw weights for their model, norms included, and build ours with the same weights."""
    torch.manual_seed(1)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 0.1, 0.4)
    ours = build_model(config).double().eval()
    ours.load_state_dict(from_theirs(theirs.state_dict(), names, config.n_layers, shift))
    return ours


FIELDS: dict[str, Any] = {
    "d_model": 24,
    "n_layers": 2,
    "n_heads": 3,
    "n_kv_heads": 1,
    "d_head": D_HEAD,
    "d_ff": 40,
    "max_seq_len": LONGEST,
    "vocab_size": VOCAB,
    "dropout": 0.0,
    "norm": {"kind": "rmsnorm", "eps": 1e-6},
    "attention": {"qkv_bias": False, "output_bias": False},
    "tie_embeddings": False,
}


def llamas(name: str) -> tuple[Network, nn.Module]:
    """Return a tiny Llama of ours and theirs with the same weights."""
    theirs = LlamaForCausalLM(llama_config(name)).double().eval()
    position = {"kind": "rotary", "rope_theta": 100.0, "rope_scaling": CASES[name][0]}
    names = {"attn_residual.norm": "input_layernorm", "ff_residual.norm": "post_attention_layernorm"}
    return give_weights(theirs, DecoderConfig.model_validate(FIELDS | {"position": position}), names), theirs


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_logits_of_a_llama_are_theirs(name: str) -> None:
    ours, theirs = llamas(name)
    for length in (5, TRAINED, TRAINED + 1, 24, 6):  # growing, and short again
        tokens = torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(length))
        expected = theirs(tokens, use_cache=False).logits
        assert (ours(tokens) - expected).abs().max() <= 1e-10 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
@torch.no_grad()
def test_decoding_is_theirs_where_both_keep_the_frequencies_of_the_prompt(name: str) -> None:
    """Their cache keeps keys that the frequencies of the prompt rotated, ours those of the final length: equal on one side of the limit."""
    ours, theirs = llamas(name)
    tokens = torch.randint(VOCAB, (1, 20), generator=torch.Generator().manual_seed(3))
    for n_prompt, length in ((3, TRAINED), (12, 20)) if name == "longrope" else ((3, TRAINED),):
        past, expected = None, []
        for part in (tokens[:, :n_prompt], *tokens[:, n_prompt:length].split(1, 1)):
            output = theirs(part, past_key_values=past, use_cache=True)
            past, expected = output.past_key_values, [*expected, output.logits[:, -1:]]
        text = ours.as_batch(tokens[:, :n_prompt]).decoder_input
        cache = ours.start(text, 1, length - n_prompt + 1)  # type: ignore[operator]
        found = [ours.step(token, cache) for token in tokens[:, n_prompt - 1 : length].split(1, 1)]  # type: ignore[operator]
        assert (torch.cat(found, 1) - torch.cat(expected, 1)).abs().max() <= 1e-10 * torch.cat(expected, 1).abs().max()


@torch.no_grad()
def test_a_base_and_a_scaling_per_layer_are_gemma_3s() -> None:
    """Local layers have base 50 and a window of 5 tokens; every third layer has base 1,000, scaled by 4 (Gemma Team 2025, section 2)."""
    local, full = "sliding_attention", "full_attention"
    rope = {local: {"rope_type": "default", "rope_theta": 50.0}, full: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}}
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=5,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=D_HEAD,
        query_pre_attn_scalar=D_HEAD,
        hidden_activation="gelu",
        max_position_embeddings=LONGEST,
        sliding_window=5,
        layer_types=[local, local, full, local, local],
        rope_parameters=rope,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    theirs = Gemma3ForCausalLM(config).double().eval()
    window: dict[str, Any] = {"kind": "window", "size": 5}
    fields = FIELDS | {
        "d_model": 16,
        "n_layers": 5,
        "n_heads": 2,
        "norm_placement": "sandwich",
        "feed_forward": {"kind": "geglu"},
        "scale_embeddings": True,
        "attention": {"qkv_bias": False, "output_bias": False, "qk_norm": "rmsnorm", "pattern": [window, window, "full"]},
        "position": {
            "kind": "rotary",
            "rope_theta": [50.0, 50.0, 1000.0],
            "rope_scaling": ["none", "none", {"kind": "linear", "factor": 4.0}],
        },
    }
    names = {
        "attn.q_norm": "self_attn.q_norm",
        "attn.k_norm": "self_attn.k_norm",
        "attn_residual.norm": "input_layernorm",
        "attn_residual.norm_out": "post_attention_layernorm",
        "ff_residual.norm": "pre_feedforward_layernorm",
        "ff_residual.norm_out": "post_feedforward_layernorm",
    }
    ours = give_weights(theirs, DecoderConfig.model_validate(fields), names, shift=1.0)
    tokens = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))
    expected = theirs(tokens, use_cache=False).logits
    assert (ours(tokens) - expected).abs().max() <= 1e-10 * expected.abs().max().clamp(min=1)
