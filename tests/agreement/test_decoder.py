"""The decoder family against the transformers library's GPT-2 and Llama, given the same weights."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from transom.config.model import DecoderConfig
from transom.config.packaged import packaged_presets
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.layers.attention import causal_mask
from transom.layers.context import AttentionContext, BlockContext
from transom.models.base import Network
from transom.models.build import build_model

VOCAB, LENGTH = 31, 12
GPT2 = DecoderConfig.model_validate(
    {
        "d_model": 24,
        "n_layers": 3,
        "n_heads": 4,
        "d_ff": 40,
        "max_seq_len": 16,
        "vocab_size": VOCAB,
        "dropout": 0.0,
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": "learned",
        "feed_forward": "gelu-tanh",
    }
)
LLAMA = DecoderConfig.model_validate(
    {
        "d_model": 24,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "d_ff": 40,
        "max_seq_len": 16,
        "vocab_size": VOCAB,
        "dropout": 0.0,
        "norm": {"kind": "rmsnorm", "eps": 1e-6},
        "attention": {"qkv_bias": False, "output_bias": False},
        "tie_embeddings": False,
    }
)


def gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=24,
        n_layer=3,
        n_head=4,
        n_inner=40,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        attn_implementation="sdpa",  # their eager softmax is in float32
    )
    model = LlamaForCausalLM(config)
    model.model.rotary_emb = RotaryAngles()  # theirs, and their norms, compute in float32 whatever the model's type
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LlamaRMSNorm):
                setattr(module, name, nn.RMSNorm(24, 1e-6))
    return model


class RotaryAngles(nn.Module):
    """Cosines and sines of Su et al. 2021, eq. 15, in the dtype of the model."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        theta = torch.tensor([10000 ** (-2 * k / 6) for k in range(3)], dtype=torch.float64)
        angles = (position_ids[..., None] * theta).repeat(1, 1, 2)  # (batch, length, d_head)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def from_gpt2(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert GPT-2's weights to our names: its layers are stored transposed, with W_Q, W_K and W_V concatenated."""
    ours = {
        "embedding.tokens.weight": theirs["transformer.wte.weight"],
        "embedding.position.table.weight": theirs["transformer.wpe.weight"],
        "unembedding.weight": theirs["lm_head.weight"],
    }
    for part in ("weight", "bias"):
        ours[f"decoder.norm.{part}"] = theirs[f"transformer.ln_f.{part}"]
        for i in range(3):
            block, here = f"transformer.h.{i}", f"decoder.blocks.{i}"
            ours[f"{here}.attn_residual.norm.{part}"] = theirs[f"{block}.ln_1.{part}"]
            ours[f"{here}.ff_residual.norm.{part}"] = theirs[f"{block}.ln_2.{part}"]
            joined = theirs[f"{block}.attn.c_attn.{part}"].split(24, -1)
            ours |= {f"{here}.attn.{name}.{part}": x.t() for name, x in zip("qkv", joined, strict=True)}
            for name, their_name in (("attn.o", "attn.c_proj"), ("ff.up", "mlp.c_fc"), ("ff.down", "mlp.c_proj")):
                ours[f"{here}.{name}.{part}"] = theirs[f"{block}.{their_name}.{part}"].t()
    return ours


def from_llama(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert Llama's weights to our names."""
    ours = {
        "embedding.tokens.weight": theirs["model.embed_tokens.weight"],
        "unembedding.weight": theirs["lm_head.weight"],
        "decoder.norm.weight": theirs["model.norm.weight"],
    }
    names = {
        "attn_residual.norm": "input_layernorm",
        "ff_residual.norm": "post_attention_layernorm",
        **{f"attn.{name}": f"self_attn.{name}_proj" for name in "qkvo"},
        "ff.gate": "mlp.gate_proj",
        "ff.up": "mlp.up_proj",
        "ff.down": "mlp.down_proj",
    }
    for i in range(3):
        ours |= {f"decoder.blocks.{i}.{name}.weight": theirs[f"model.layers.{i}.{their}.weight"] for name, their in names.items()}
    return ours


@pytest.fixture(params=["gpt2", "llama"])
def both(request: pytest.FixtureRequest) -> tuple[Network, nn.Module]:
    """Return our model and theirs with the same random weights, norms and biases included."""
    torch.set_default_dtype(torch.float64)  # tables of positions too
    try:
        torch.manual_seed(1)
        make, names, config = {"gpt2": (gpt2, from_gpt2, GPT2), "llama": (llama, from_llama, LLAMA)}[request.param]
        theirs, ours = make().double().eval(), build_model(config).eval()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, 0.1, 0.3)
        ours.load_state_dict(names(theirs.state_dict()))
        return ours, theirs
    finally:
        torch.set_default_dtype(torch.float32)


def batch() -> LanguageBatch:
    torch.manual_seed(2)
    tokens = torch.randint(3, VOCAB, (2, LENGTH + 1))
    text = PaddedSequences.pad(tokens[:, :-1].tolist())
    return LanguageBatch(text, tokens[:, 1:], (0, 1))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_are_theirs(both: tuple[Network, nn.Module], dtype: torch.dtype, close: float) -> None:
    ours, theirs = (model.to(dtype) for model in both)
    text = batch()
    found, expected = ours(text), theirs(text.decoder_input.tokens).logits
    scale = expected.abs().max().clamp(min=1.0)
    assert ((found - expected).abs() / scale).max() <= close


def test_gradients_of_every_weight_are_theirs(both: tuple[Network, nn.Module]) -> None:
    ours, theirs = both
    text = batch()
    for logits in (ours(text), theirs(text.decoder_input.tokens).logits):
        nn.functional.cross_entropy(logits.flatten(0, 1), text.labels.flatten()).backward()
    names = from_gpt2 if "transformer.wte.weight" in theirs.state_dict() else from_llama
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters(remove_duplicate=False)}
    expected = names({name: gradient for name, gradient in gradients.items() if gradient is not None})
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None and torch.allclose(parameter.grad, expected[name], rtol=0, atol=1e-10), name


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_the_guides_block_is_torchs_pre_norm_layer(dtype: torch.dtype, close: float) -> None:
    torch.manual_seed(1)
    fields = packaged_presets()["decoder-block"]["model"]
    ours = build_model(DecoderConfig.model_validate(fields | {"vocab_size": 7, "max_seq_len": 16})).to(dtype).eval()
    theirs = nn.TransformerEncoderLayer(512, 8, 2048, 0.1, "gelu", norm_first=True, batch_first=True).to(dtype).eval()
    block = ours.get_submodule("decoder.blocks.0")
    assert sum(p.numel() for p in block.parameters()) == sum(p.numel() for p in theirs.parameters()) == 3_152_384
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 0.02, 0.05)
    their = theirs.state_dict()
    names = {
        "attn.o": "self_attn.out_proj",
        "ff.up": "linear1",
        "ff.down": "linear2",
        "attn_residual.norm": "norm1",
        "ff_residual.norm": "norm2",
    }
    for part in ("weight", "bias"):
        joined = their[f"self_attn.in_proj_{part}"].chunk(3)
        mine = {f"attn.{name}.{part}": x for name, x in zip("qkv", joined, strict=True)}
        mine |= {f"{name}.{part}": their[f"{their_name}.{part}"] for name, their_name in names.items()}
        missing, extra = block.load_state_dict(mine, strict=False)
        assert not extra and all(not name.endswith(part) for name in missing)
    x = torch.randn(2, 9, 512, dtype=dtype)
    their_mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=dtype)
    expected = theirs(x, src_mask=their_mask, is_causal=True)
    assert (
        block(x, BlockContext(attention=AttentionContext(mask=causal_mask(9, 9))))[0] - expected
    ).abs().max() <= close * expected.abs().max()
