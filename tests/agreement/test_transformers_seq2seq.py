"""BART and T5 of the transformers library, mapped by hand: decoders of another size, an embedding norm, biased and scaled logits."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.agreement.test_transformers_families import LENGTH, LENGTHS, MASK, TOKENS, VOCAB, Family, Weights, both, on_side

TARGETS = TOKENS.flip(0)
TARGET_LENGTHS = [3, 7, 5]
TARGET_MASK = (torch.arange(LENGTH) < torch.tensor(TARGET_LENGTHS)[:, None]).long()
SIZES: dict[str, Any] = {
    "kind": "seq2seq",
    "d_model": 24,
    "n_encoder_layers": 2,
    "n_decoder_layers": 2,
    "n_heads": 4,
    "d_ff": 40,
    "max_seq_len": 16,
    "source_vocab_size": VOCAB,
    "target_vocab_size": VOCAB,
    "dropout": 0.0,
}


def bart() -> Family:
    """Positions of BART start at 2: the tables are cut."""
    config = transformers.BartConfig(
        vocab_size=VOCAB,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=40,
        decoder_ffn_dim=28,
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    own = {
        **{f"attn.{name}": f"self_attn.{name}_proj" for name in "qkv"},
        "attn.o": "self_attn.out_proj",
        "attn_residual.norm": "self_attn_layer_norm",
        "ff.up": "fc1",
        "ff.down": "fc2",
        "ff_residual.norm": "final_layer_norm",
    }
    cross = {
        **{f"cross.{name}": f"encoder_attn.{name}_proj" for name in "qkv"},
        "cross.o": "encoder_attn.out_proj",
        "cross_residual.norm": "encoder_attn_layer_norm",
    }
    fields = {"position": "learned", "embedding_norm": True, "scale_embeddings": False, "feed_forward": "gelu", "head_bias": True}

    def change(found: dict[str, Tensor], theirs: Weights) -> None:
        found["unembedding.bias"] = theirs["final_logits_bias"][0]
        for side in ("source", "target"):
            found[f"{side}_embedding.position.table.weight"] = found[f"{side}_embedding.position.table.weight"][2:]

    modules = {"source_embedding.tokens": "model.shared"}
    for side, stack in (("source", "encoder"), ("target", "decoder")):
        modules |= {
            f"{side}_embedding.position.table": f"model.{stack}.embed_positions",
            f"{side}_embedding.norm": f"model.{stack}.layernorm_embedding",
        }
    blocks = {"encoder": ("model.encoder.layers.{}", own), "decoder": ("model.decoder.layers.{}", own | cross)}
    ours = SIZES | fields | {"decoder_n_heads": 2, "decoder_d_ff": 28}

    def theirs() -> nn.Module:
        model = transformers.BartForConditionalGeneration(config)
        model.final_logits_bias = torch.linspace(-1.0, 1.0, VOCAB)[None]  # a buffer, not a parameter
        return model

    return Family(theirs, ours, blocks, modules, change)


def t5() -> Family:
    """The scores of T5 are not divided by sqrt(d_head), so W_Q takes the factor; tied logits are scaled by d_model^-0.5."""
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=24,
        d_kv=5,
        d_ff=40,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=9,
        feed_forward_proj="gated-gelu",
        layer_norm_epsilon=1e-3,
        dropout_rate=0.0,
        tie_word_embeddings=True,
    )

    def of(stack: str) -> dict[str, str]:
        cross, last = stack == "decoder", 2 if stack == "decoder" else 1
        names = {f"attn.{name}": f"layer.0.SelfAttention.{name}" for name in "qkvo"} | {"attn_residual.norm": "layer.0.layer_norm"}
        if cross:
            names |= {f"cross.{name}": f"layer.1.EncDecAttention.{name}" for name in "qkvo"} | {"cross_residual.norm": "layer.1.layer_norm"}
        parts = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
        names |= {f"ff.{name}": f"layer.{last}.DenseReluDense.{their}" for name, their in parts.items()}
        return names | {"ff_residual.norm": f"layer.{last}.layer_norm"}

    def change(found: dict[str, Tensor], _: Weights) -> None:
        for name in [name for name in found if name.endswith(".q.weight")]:
            found[name] = found[name] * 5**0.5

    fields = {
        "d_head": 5,
        "norm": {"kind": "rmsnorm", "eps": 1e-3},
        "norm_placement": "pre",
        "position": {"kind": "relative", "n_buckets": 8, "max_distance": 9},
        "feed_forward": "geglu-tanh",
        "scale_embeddings": False,
        "attention": {"qkv_bias": False, "output_bias": False},
        "logit_scale": 24**-0.5,
    }
    modules = {"source_embedding.tokens": "shared"}
    for side, stack in (("source", "encoder"), ("target", "decoder")):
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        modules |= {f"{side}_embedding.position.table": table, f"{stack}.norm": f"{stack}.final_layer_norm"}
    blocks = {stack: (f"{stack}.block.{{}}", of(stack)) for stack in ("encoder", "decoder")}
    return Family(lambda: transformers.T5ForConditionalGeneration(config), SIZES | fields, blocks, modules, change)


class Gain(nn.Module):
    """T5's norm w x / sqrt(mean(x^2) + eps) in the dtype of x; theirs computes the mean in float32."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.weight, self.eps = theirs.weight, theirs.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", [bart(), t5()], ids=lambda family: type(family.theirs()).__name__)
@torch.no_grad()
def test_encoder_decoders_are_theirs(family: Family, side: str) -> None:
    ours, theirs = both(family)
    for module in list(theirs.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "T5LayerNorm":
                setattr(module, name, Gain(child))
    expected = theirs(TOKENS, attention_mask=MASK, decoder_input_ids=TARGETS, decoder_attention_mask=TARGET_MASK).logits
    tokens, mask = (on_side(x, side, LENGTHS) for x in (TOKENS, MASK))
    targets, target_mask = (on_side(x, side, TARGET_LENGTHS) for x in (TARGETS, TARGET_MASK))
    found = ours(tokens, attention_mask=mask, decoder_tokens=targets, decoder_attention_mask=target_mask)
    assert (found[target_mask.bool()] - expected[TARGET_MASK.bool()]).abs().max() <= 1e-10
    assert expected.std() > 1e-2
