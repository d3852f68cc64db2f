"""The encoder alone: a text in, and what stands behind its masks, the class of all of it or a vector for it, as in BERT."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.components import implements
from transom.config.model import Encoder, MaskedEncoder, TextClassifier, TextEmbedder
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.masks.rule import SAME_SEGMENT, Places, build_rules
from transom.layers.masks.sight import Sight, look, of_block
from transom.layers.norm import build_norm
from transom.layers.position import build_position
from transom.layers.stack import Stack
from transom.layers.tap import Scope, scope, tap
from transom.models.network import Network, Sequences


@runtime_checkable
class Batch(Protocol):
    """What the model reads of a batch: the text."""

    @property
    def source(self) -> Sequences: ...


@runtime_checkable
class Pairs(Protocol):
    """What a model of pairs reads of a batch: both sides."""

    @property
    def source(self) -> Sequences: ...
    @property
    def target(self) -> Sequences: ...


class EncoderTransformer(Network):
    """What all three models share: the text as vectors, each of which has seen all of it (Devlin et al. 2019, section 3)."""

    def __init__(self, config: Encoder) -> None:
        """Build embedding and encoder from a configuration whose vocabulary size is known; the mask has a row of its own, the last."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: Encoder = config
        tokens = nn.Embedding(config.vocab_size + 1, config.d_model)
        norm = build_norm(config.norm, config.d_model) if config.embedding_norm else None
        self.embedding = Embedding(tokens, build_position(config, causal=False), config.scale_embeddings, config.dropout, norm)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.rules = build_rules(config.attention, SAME_SEGMENT)

    def encode(self, text: Sequences, taps: Scope | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return a vector a token."""
        x = self.embedding(text.tokens, text.positions, scope(taps, "embedding"), text.segments > 0)
        return self.encoder(x, self.source_sight(text), taps=scope(taps, "encoder"))

    def sight(self, attention: str, batch: Batch) -> Sight:
        """Return what the queries of an attention may see of a batch."""
        return of_block(self.source_sight(batch.source, written_out=True), attention)

    def source_sight(self, text: Sequences, written_out: bool = False) -> list[Sight]:
        """Let tokens see their own text, as each block's pattern has it."""
        places = Places(text.positions, text.segments)
        return look(self.embedding.position, places, places, self.rules, written_out or self.encoder.routed)


@implements(MaskedEncoder)
class MaskedEncoderTransformer(EncoderTransformer):
    """A masked language model: p(x_t | the text with x_t hidden) (Devlin et al. 2019, section 3.1).

    As in BERT's released code the logits are those of Norm(GELU(h W + b)); they have no bias of their own.
    """

    def __init__(self, config: MaskedEncoder) -> None:
        """Build from a configuration whose vocabulary size is known."""
        super().__init__(config)
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.transform_norm = build_norm(config.norm, config.d_model)
        self.unembedding = nn.Linear(config.d_model, self.embedding.tokens.num_embeddings, bias=False)
        if config.tie:
            self.unembedding.weight = self.embedding.tokens.weight

    def hidden(self, batch: Batch, taps: Scope | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return a vector a token, of which the logits are a linear map."""
        transformed = F.gelu(self.transform(self.encode(batch.source, taps)))
        return self.transform_norm(transformed, scope(taps, "transform_norm"), batch.source.segments > 0)


@implements(TextClassifier)
class TextClassifierTransformer(EncoderTransformer):
    """A classifier of texts: p(class | text) (Devlin et al. 2019, section 4.1).

    As in BERT's released code the logits are those of tanh(h W + b), h the start symbol's vector or, as here by default, the mean of all.
    """

    def __init__(self, config: TextClassifier) -> None:
        """Build from a configuration whose vocabulary size and classes are known."""
        super().__init__(config)
        assert config.classes, "the classes come from the data"
        self.config: TextClassifier = config
        self.pooler = nn.Linear(config.d_model, config.d_model)
        self.dropout = Dropout(config.pooler_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), bias=False)

    def hidden(self, batch: Batch, taps: Scope | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a vector a text, of which the logits are a linear map."""
        states = self.encode(batch.source, taps)
        pooled = states[:, 0] if self.config.pool == "start" else mean_pooled(states, batch.source).to(states)
        pooled = tap(taps, "pooled", pooled)
        return self.dropout(self.pooler(pooled).tanh())


@implements(TextEmbedder)
class TextEmbedderTransformer(EncoderTransformer):
    """An encoder of texts to vectors, of which those of a pair are to be near: the mean of the last vectors (Reimers & Gurevych 2019).

    Its logits are cos(u_i, v_j) / temperature of each left side with all right sides of the batch, the label of u_i is i: the loss is
    then -log exp(cos(u_i, v_i) / t) / sum_j exp(cos(u_i, v_j) / t) (Gao et al. 2021, eq. 1 and 4).
    """

    def __init__(self, config: TextEmbedder) -> None:
        """Build from a configuration whose vocabulary size is known."""
        super().__init__(config)
        self.config: TextEmbedder = config

    def vectors(self, text: Sequences, taps: Scope | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a vector of length 1 a text."""
        return F.normalize(mean_pooled(self.encode(text, taps), text), dim=-1)

    def hidden(self, batch: Pairs, taps: Scope | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the vectors of the left sides."""
        return self.vectors(batch.source, taps)

    def output(self, batch: Pairs, taps: Scope | None = None) -> tuple[Float[Tensor, "batch d_model"], Float[Tensor, "batch d_model"]]:
        """Return the vectors of the left sides, and those of the right sides over the temperature; both pass the same sites."""
        return self.hidden(batch, taps), self.vectors(batch.target, taps) / self.config.temperature

    def tokens(self, site: str, batch: Pairs) -> list[Bool[Tensor, "batch length"]]:
        """Tell tokens from padding, of the left sides and then of the right sides."""
        return [side.segments > 0 for side in (batch.source, batch.target)]

    def forward(self, batch: Pairs, taps: Scope | None = None) -> Float[Tensor, "batch batch"]:
        """Return the cosines of each left side with all right sides, over the temperature."""
        return self.hidden(batch, taps) @ self.vectors(batch.target).T / self.config.temperature


def mean_pooled(states: Float[Tensor, "batch source d_model"], text: Sequences) -> Float[Tensor, "batch d_model"]:
    """Return the mean of each row's vectors, padding left out, in float32 at least."""
    real = (text.segments > 0).to(torch.promote_types(states.dtype, torch.float32))[:, :, None]
    return (states * real).sum(1) / real.sum(1)
