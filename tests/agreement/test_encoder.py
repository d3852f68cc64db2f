"""The encoder family against the transformers library's BERT, given the same weights."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from transom.config.model import MaskedLMConfig, TextClassifierConfig
from transom.data.batch import LabeledTextBatch, MaskedBatch, PaddedSequences
from transom.models.base import Network
from transom.models.build import build_model

VOCAB = 31
SHARED: dict[str, Any] = {
    "d_model": 24,
    "n_layers": 3,
    "n_heads": 4,
    "d_ff": 40,
    "max_seq_len": 16,
    "vocab_size": VOCAB - 1,
    "dropout": 0.0,
    "norm": {"kind": "layernorm", "eps": 1e-12},
}
TEXT = PaddedSequences.pad([[2, 5, 30, 7, 9, 30, 12, 3], [2, 30, 8, 6, 4]])


def config() -> BertConfig:
    return BertConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
        attn_implementation="sdpa",
    )


def renamed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert BERT's weights to our names; the embedding of token type 0, which every token gets, is added to the positions."""
    ours = {
        "embedding.tokens.weight": theirs["bert.embeddings.word_embeddings.weight"],
        "embedding.position.table.weight": theirs["bert.embeddings.position_embeddings.weight"]
        + theirs["bert.embeddings.token_type_embeddings.weight"][0],
    }
    heads = {
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
        "pooler": "bert.pooler.dense",
    }
    for part in ("weight", "bias"):
        ours[f"embedding.norm.{part}"] = theirs[f"bert.embeddings.LayerNorm.{part}"]
        ours |= {f"{name}.{part}": theirs[f"{their}.{part}"] for name, their in heads.items() if f"{their}.{part}" in theirs}
        for i in range(3):
            names = {
                **{f"attn.{short}": f"attention.self.{name}" for short, name in (("q", "query"), ("k", "key"), ("v", "value"))},
                "attn.o": "attention.output.dense",
                "attn_residual.norm": "attention.output.LayerNorm",
                "ff.up": "intermediate.dense",
                "ff.down": "output.dense",
                "ff_residual.norm": "output.LayerNorm",
            }
            ours |= {f"encoder.blocks.{i}.{name}.{part}": theirs[f"bert.encoder.layer.{i}.{their}.{part}"] for name, their in names.items()}
    output = "cls.predictions.decoder.weight" if "cls.predictions.decoder.weight" in theirs else "classifier.weight"
    return ours | {"unembedding.weight": theirs[output]}


@pytest.fixture(params=["masked", "class"])
def both(request: pytest.FixtureRequest) -> tuple[Network, nn.Module]:
    """Return our model and theirs with the same random weights, norms and biases included, without a bias on the logits."""
    torch.manual_seed(1)
    theirs: nn.Module = BertForMaskedLM(config()) if request.param == "masked" else BertForSequenceClassification(config())
    theirs = theirs.double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 0.1, 0.3)
    for name, parameter in theirs.named_parameters():
        if name in ("cls.predictions.bias", "classifier.bias"):
            nn.init.zeros_(parameter)
    schema = MaskedLMConfig if request.param == "masked" else TextClassifierConfig
    classes = {} if request.param == "masked" else {"classes": ("a", "b", "c"), "pooling": "cls"}
    ours = build_model(schema.model_validate(SHARED | classes)).double().eval()
    ours.load_state_dict(renamed(theirs.state_dict()))
    return ours, theirs


def batch(ours: Network) -> MaskedBatch | LabeledTextBatch:
    if isinstance(ours.config, MaskedLMConfig):
        return MaskedBatch(TEXT, TEXT.tokens, TEXT.segments > 0, (0, 1))
    return LabeledTextBatch(TEXT, torch.tensor([2, 0]), (0, 1))


def logits_of(ours: Network, theirs: nn.Module) -> tuple[Tensor, Tensor]:
    """Run both on the same texts and return the logits without padding."""
    texts = batch(ours)
    expected = theirs(TEXT.tokens, attention_mask=(TEXT.segments > 0).long()).logits
    return ours(texts)[texts.loss_mask], expected[texts.loss_mask]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_are_theirs(both: tuple[Network, nn.Module], dtype: torch.dtype, close: float) -> None:
    found, expected = logits_of(*(model.to(dtype) for model in both))
    assert ((found - expected).abs() / expected.abs().max().clamp(min=1.0)).max() <= close


def test_gradients_of_every_weight_are_theirs(both: tuple[Network, nn.Module]) -> None:
    ours, theirs = both
    labels = batch(ours).labels[batch(ours).loss_mask]
    for logits in logits_of(ours, theirs):
        nn.functional.cross_entropy(logits, labels).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters(remove_duplicate=False)}
    gradients["bert.embeddings.token_type_embeddings.weight"] = torch.zeros(2, 24, dtype=torch.float64)
    expected = renamed({name: gradient for name, gradient in gradients.items() if gradient is not None})
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None and torch.allclose(parameter.grad, expected[name], rtol=0, atol=1e-10), name
