"""Further families of the transformers library, mapped by hand: tiny random models, all elements, padding left and right."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn

from transom.errors import TransomError
from transom.models.build import build

VOCAB, LENGTH = 31, 7
TOKENS = torch.tensor([[5, 9, 30, 7, 11, 4, 8], [6, 12, 3, 29, 2, 17, 9], [3, 4, 5, 6, 7, 8, 10]])
LENGTHS = [7, 4, 1]
MASK = (torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]).long()
TYPES = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 1], [1, 0, 1, 0, 1, 0, 1]])
SIZES: dict[str, Any] = {"d_model": 24, "n_heads": 4, "d_ff": 40, "max_seq_len": 16, "vocab_size": VOCAB, "n_layers": 2, "dropout": 0.0}
THEIRS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
    "attn_implementation": "eager",
}
Weights = Mapping[str, Tensor]


class Family(NamedTuple):
    """A model of theirs, the fields of ours, and the names of its weights.

    Attributes:
        theirs: builds their model.
        fields: fields of our model.
        blocks: path of the block i of theirs, and the names of its modules by ours, per stack.
        modules: names of their other modules by ours.
        change: computes weights that have another form; None for no change.
    """

    theirs: Callable[[], nn.Module]
    fields: dict[str, Any]
    blocks: dict[str, tuple[str, dict[str, str]]]
    modules: dict[str, str]
    change: Callable[[dict[str, Tensor], Weights], None] | None = None


def randomized(model: nn.Module) -> nn.Module:
    """Draw all weights, so that gains are not 1 and biases not 0, in float64."""
    generator = torch.Generator().manual_seed(1)
    model = model.double().eval()
    for parameter in model.parameters():
        mean = 0.9 if parameter.dim() == 1 else 0.0
        with torch.no_grad():
            parameter.copy_(mean + 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return model


def mapped(family: Family, theirs: Weights, ours: nn.Module) -> dict[str, Tensor]:
    """Rename their weights; every weight of ours must get one."""
    names = dict(family.modules)
    for stack, (path, modules) in family.blocks.items():
        for i in range(2):
            names |= {f"{stack}.blocks.{i}.{name}": f"{path.format(i)}.{their}" for name, their in modules.items()}
    found = {
        f"{name}.{part}": theirs[f"{their}.{part}"]
        for name, their in names.items()
        for part in ("weight", "bias")
        if f"{their}.{part}" in theirs
    }
    if family.change is not None:
        family.change(found, theirs)
    return {name: value for name, value in found.items() if name in ours.state_dict()}


def both(family: Family) -> tuple[Any, nn.Module]:
    """Return our model and theirs with the same weights."""
    theirs = randomized(family.theirs())
    ours = build(family.fields).double().eval()
    ours.load_state_dict(mapped(family, theirs.state_dict(), ours))
    return ours, theirs


def cut(model: dict[str, Tensor], name: str, n: int) -> None:
    model[name] = model[name][n:]


BERT_BLOCK = {
    **{f"attn.{ours}": f"attention.self.{theirs}" for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value"))},
    "attn.o": "attention.output.dense",
    "attn_residual.norm": "attention.output.LayerNorm",
    "ff.up": "intermediate.dense",
    "ff.down": "output.dense",
    "ff_residual.norm": "output.LayerNorm",
}
BERT: dict[str, Any] = SIZES | {
    "norm": {"kind": "layernorm", "eps": 1e-3},
    "mask_token_id": 3,
    "n_token_types": 2,
    "head_bias": True,
    "feed_forward": "gelu",
}


def bert_modules(prefix: str) -> dict[str, str]:
    return {
        "embedding.tokens": f"{prefix}.embeddings.word_embeddings",
        "embedding.position.table": f"{prefix}.embeddings.position_embeddings",
        "embedding.token_types": f"{prefix}.embeddings.token_type_embeddings",
        "embedding.norm": f"{prefix}.embeddings.LayerNorm",
    }


def bert(head: str) -> Family:
    config = transformers.BertConfig(**THEIRS, layer_norm_eps=1e-3, num_labels=3)
    if head == "masked":
        modules = {"transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm"}
        return Family(
            lambda: transformers.BertForMaskedLM(config),
            BERT | {"kind": "encoder"},
            {"encoder": ("bert.encoder.layer.{}", BERT_BLOCK)},
            bert_modules("bert") | modules | {"unembedding": "cls.predictions.decoder"},
        )
    return Family(
        lambda: transformers.BertForSequenceClassification(config),
        BERT | {"kind": "text-classifier", "classes": ["a", "b", "c"], "pooling": "cls"},
        {"encoder": ("bert.encoder.layer.{}", BERT_BLOCK)},
        bert_modules("bert") | {"pooler": "bert.pooler.dense", "unembedding": "classifier"},
    )


def roberta(head: str) -> Family:
    """Positions of RoBERTa start at the padding token's id plus 1, which is 2 here: the table is cut."""
    config = transformers.RobertaConfig(
        **THEIRS | {"max_position_embeddings": 18}, layer_norm_eps=1e-3, num_labels=3, type_vocab_size=2, pad_token_id=1
    )

    def change(found: dict[str, Tensor], theirs: Weights) -> None:
        cut(found, "embedding.position.table.weight", 2)

    blocks = {"encoder": ("roberta.encoder.layer.{}", BERT_BLOCK)}
    if head == "masked":
        modules = {"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm", "unembedding": "lm_head.decoder"}
        return Family(
            lambda: transformers.RobertaForMaskedLM(config), BERT | {"kind": "encoder"}, blocks, bert_modules("roberta") | modules, change
        )
    return Family(
        lambda: transformers.RobertaForSequenceClassification(config),
        BERT | {"kind": "text-classifier", "classes": ["a", "b", "c"], "pooling": "cls", "pooler_input_dropout": 0.1},
        blocks,
        bert_modules("roberta") | {"pooler": "classifier.dense", "unembedding": "classifier.out_proj"},
        change,
    )


def distilbert(head: str) -> Family:
    config = transformers.DistilBertConfig(
        vocab_size=VOCAB,
        dim=24,
        n_layers=2,
        n_heads=4,
        hidden_dim=40,
        max_position_embeddings=16,
        num_labels=3,
        attn_implementation="eager",
    )
    block = {
        **{f"attn.{name}": f"attention.{name}_lin" for name in "qkv"},
        "attn.o": "attention.out_lin",
        "attn_residual.norm": "sa_layer_norm",
        "ff.up": "ffn.lin1",
        "ff.down": "ffn.lin2",
        "ff_residual.norm": "output_layer_norm",
    }
    fields = BERT | {"n_token_types": 0, "norm": {"kind": "layernorm", "eps": 1e-12}}
    modules = {
        "embedding.tokens": "distilbert.embeddings.word_embeddings",
        "embedding.position.table": "distilbert.embeddings.position_embeddings",
        "embedding.norm": "distilbert.embeddings.LayerNorm",
    }
    blocks = {"encoder": ("distilbert.transformer.layer.{}", block)}
    if head == "masked":
        more = {"transform": "vocab_transform", "transform_norm": "vocab_layer_norm", "unembedding": "vocab_projector"}
        return Family(lambda: transformers.DistilBertForMaskedLM(config), fields | {"kind": "encoder"}, blocks, modules | more)
    return Family(
        lambda: transformers.DistilBertForSequenceClassification(config),
        fields | {"kind": "text-classifier", "classes": ["a", "b", "c"], "pooling": "cls", "pooler_activation": "relu"},
        blocks,
        modules | {"pooler": "pre_classifier", "unembedding": "classifier"},
    )


ENCODERS = [build_family(head) for build_family in (bert, roberta, distilbert) for head in ("masked", "class")]


def check(ours: Any, theirs: nn.Module, side: str, pooled: bool = False, types: Tensor | None = None) -> None:
    """Compare the logits of texts that ours gets with padding on one side, and theirs with padding on the right."""
    typed = {} if types is None else {"token_type_ids": types}
    expected = theirs(TOKENS, attention_mask=MASK, **typed).logits
    tokens, mask = (on_side(x, side) for x in (TOKENS, MASK))
    found = ours(tokens, attention_mask=mask, **({} if types is None else {"token_types": on_side(types, side)}))
    pairs = (found, expected) if pooled else (found[mask.bool()], expected[MASK.bool()])
    assert (pairs[0] - pairs[1]).abs().max() <= 1e-10 and pairs[1].std() > 1e-2


def on_side(x: Tensor, side: str, lengths: Sequence[int] = LENGTHS) -> Tensor:
    """Move the padding, if ``side`` is "left", from the right to the left."""
    return x if side == "right" else torch.stack([row.roll(LENGTH - n) for row, n in zip(x, lengths, strict=True)])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ENCODERS, ids=lambda family: type(family.theirs()).__name__)
@torch.no_grad()
def test_encoders_are_theirs(family: Family, side: str) -> None:
    ours, theirs = both(family)
    check(ours, theirs, side, ours.config.kind == "text-classifier", TYPES if ours.config.n_token_types else None)


def test_token_types_that_do_not_exist_are_refused() -> None:
    ours, _ = both(ENCODERS[0])
    for types in (TYPES + 1, TYPES[:, :3], TYPES - 1):
        with pytest.raises(TransomError, match=r"token_types: expected the shape of the tokens, .3, 7., and types below n_token_types = 2"):
            ours(TOKENS, token_types=types)


def phi() -> Family:
    config = transformers.PhiConfig(**THEIRS, partial_rotary_factor=0.7, layer_norm_eps=1e-3, rope_theta=100.0, resid_pdrop=0.0)
    block = {
        **{f"attn.{name}": f"self_attn.{name}_proj" for name in "qkv"},
        "attn.o": "self_attn.dense",
        "norm": "input_layernorm",
        "ff.up": "mlp.fc1",
        "ff.down": "mlp.fc2",
    }
    fields = {
        "norm": {"kind": "layernorm", "eps": 1e-3},
        "norm_placement": "parallel",
        "position": {"kind": "rotary", "partial_rotary_factor": 0.7, "rope_theta": 100.0},
        "feed_forward": "gelu-tanh",
        "head_bias": True,
        "tie_embeddings": False,
    }
    modules = {"embedding.tokens": "model.embed_tokens", "decoder.norm": "model.final_layernorm", "unembedding": "lm_head"}
    return Family(
        lambda: transformers.PhiForCausalLM(config), SIZES | fields | {"kind": "decoder"}, {"decoder": ("model.layers.{}", block)}, modules
    )


def gpt_neox() -> Family:
    config = transformers.GPTNeoXConfig(
        **THEIRS, rotary_pct=0.7, layer_norm_eps=1e-3, use_parallel_residual=True, hidden_act="gelu", tie_word_embeddings=False
    )
    block = {
        "attn.o": "attention.dense",
        "attn_residual.norm": "input_layernorm",
        "ff_residual.norm": "post_attention_layernorm",
        "ff.up": "mlp.dense_h_to_4h",
        "ff.down": "mlp.dense_4h_to_h",
    }
    fields = {
        "norm": {"kind": "layernorm", "eps": 1e-3},
        "norm_placement": "parallel-separate",
        "position": {"kind": "rotary", "partial_rotary_factor": 0.7},
        "feed_forward": "gelu",
        "tie_embeddings": False,
    }

    def change(found: dict[str, Tensor], theirs: Weights) -> None:
        """Split the projections, which are stored head by head."""
        for i in range(2):
            for part in ("weight", "bias"):
                joined = theirs[f"gpt_neox.layers.{i}.attention.query_key_value.{part}"].unflatten(0, (4, 3, 6))
                found |= {f"decoder.blocks.{i}.attn.{name}.{part}": joined[:, j].flatten(0, 1) for j, name in enumerate("qkv")}

    modules = {"embedding.tokens": "gpt_neox.embed_in", "decoder.norm": "gpt_neox.final_layer_norm", "unembedding": "lm_head"}
    blocks = {"decoder": ("gpt_neox.layers.{}", block)}
    return Family(lambda: transformers.GPTNeoXForCausalLM(config), SIZES | fields | {"kind": "decoder"}, blocks, modules, change)


def gemma2() -> Family:
    """The scale of the scores is not d_head^-0.5, so W_Q takes the ratio; their gains are 1 + w."""
    config = transformers.Gemma2Config(
        **THEIRS,
        num_key_value_heads=2,
        head_dim=6,
        query_pre_attn_scalar=9,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        sliding_window=3,
        rms_norm_eps=1e-3,
    )
    block = {
        **{f"attn.{name}": f"self_attn.{name}_proj" for name in "qkvo"},
        "attn_residual.norm": "input_layernorm",
        "attn_residual.norm_out": "post_attention_layernorm",
        "ff_residual.norm": "pre_feedforward_layernorm",
        "ff_residual.norm_out": "post_feedforward_layernorm",
        **{f"ff.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    }
    fields = {
        "n_kv_heads": 2,
        "norm": {"kind": "rmsnorm", "eps": 1e-3},
        "norm_placement": "sandwich",
        "feed_forward": "geglu-tanh",
        "scale_embeddings": True,
        "logit_softcap": 3.0,
        "attention": {"qkv_bias": False, "output_bias": False, "softcap": 2.0, "pattern": [{"kind": "window", "size": 3}, "full"]},
    }

    def change(found: dict[str, Tensor], theirs: Weights) -> None:
        for name in [name for name in found if ".norm" in name]:
            found[name] = 1 + found[name]
        for i in range(2):
            found[f"decoder.blocks.{i}.attn.q.weight"] = found[f"decoder.blocks.{i}.attn.q.weight"] * (6 / 9) ** 0.5

    modules = {"embedding.tokens": "model.embed_tokens", "decoder.norm": "model.norm", "unembedding": "lm_head"}
    blocks = {"decoder": ("model.layers.{}", block)}
    return Family(lambda: transformers.Gemma2ForCausalLM(config), SIZES | fields | {"kind": "decoder"}, blocks, modules, change)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", [phi(), gpt_neox(), gemma2()], ids=lambda family: type(family.theirs()).__name__)
@torch.no_grad()
def test_decoders_are_theirs(family: Family, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim, dtype=None: torch.softmax(x, dim))  # theirs is in float32
    ours, theirs = both(family)
    in_double(theirs)
    check(ours, theirs, side)


def in_double(model: nn.Module) -> None:
    """Replace what theirs compute in float32 whatever the dtype of the model: RMS norms, angles of rotary positions, sqrt(d_model)."""
    for module in list(model.modules()):
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, GainFromOne(child))
            elif type(child).__name__.endswith("RotaryEmbedding"):
                setattr(module, name, RotaryAngles(child))


class GainFromOne(nn.Module):
    """(1 + w) x / sqrt(mean(x^2) + eps), in the dtype of x."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.weight, self.eps = theirs.weight, theirs.eps

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


class RotaryAngles(nn.Module):
    """Cosines and sines of Su et al. 2021, eq. 15, in the dtype of x."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        parameters = theirs.config.rope_parameters
        width = int(theirs.config.hidden_size // 4 * parameters.get("partial_rotary_factor", 1.0))
        self.theta = torch.tensor([parameters["rope_theta"] ** (-2 * k / width) for k in range(width // 2)], dtype=torch.float64)

    def forward(self, x: Tensor, position_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None] * self.theta).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)
