"""Encoder-only Transformer as in BERT: masked language model, text classifier and text embedder."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.components import implements
from transom.config.model import Encoder, MaskedEncoder, TextClassifier, TextEmbedder
from transom.layers.context import UNMASKED, AttentionContext, StackContext, open_observer
from transom.layers.dropout import Dropout
from transom.layers.embedding import Embedding
from transom.layers.masks.contexts import build_contexts, of_block
from transom.layers.masks.rule import SAME_SEGMENT, Places, build_rules
from transom.layers.norm import build_norm
from transom.layers.observe import ActivationRecorder, observe
from transom.layers.position import build_position
from transom.layers.stack import Stack
from transom.models.inputs import TensorBatch, pair_of
from transom.models.network import Network, Sequences


@runtime_checkable
class Batch(Protocol):
    """Batch of an encoder: the input tokens."""

    @property
    def source(self) -> Sequences: ...


@runtime_checkable
class Pairs(Protocol):
    """Batch of a text embedder: both sides of text pairs."""

    @property
    def source(self) -> Sequences: ...
    @property
    def target(self) -> Sequences: ...


class EncoderTransformer(Network):
    """Base class of encoder-only models: embedding and bidirectional encoder (Devlin et al. 2019, section 3)."""

    def __init__(self, config: Encoder) -> None:
        """Initialize embedding and encoder from a configuration with a vocabulary size."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: Encoder = config
        tokens = nn.Embedding(config.n_embeddings, config.d_model)
        norm = build_norm(config.norm, config.d_model) if config.embedding_norm else None
        self.embedding = Embedding(tokens, build_position(config, causal=False), config.scale_embeddings, config.dropout, norm)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.rules = build_rules(config.attention, SAME_SEGMENT)

    def encode(self, text: Sequences, ctx: StackContext | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return the hidden state of each token; ``ctx`` is the result of ``context`` if it was already built."""
        ctx = ctx or self.context(text)
        return self.encoder(self.embedding(text.tokens, text.positions, ctx), ctx)

    def context(self, text: Sequences, observer: ActivationRecorder | None = None, dense: bool = False) -> StackContext:
        """Build the context of a pass: tokens attend within their segment and the sparsity pattern; ``dense`` builds masks as matrices."""
        places = Places(text.positions, text.segments)
        contexts = build_contexts(self.embedding.position, places, places, self.rules, dense or self.encoder.routed)
        return StackContext(text.segments > 0, open_observer(observer, "encoder"), contexts, UNMASKED)

    def attention_context(self, attention: str, batch: Batch) -> AttentionContext:
        """Return the context of an attention layer for a batch, with dense masks and biases."""
        return of_block(self.context(batch.source, dense=True).attentions, attention)


@implements(MaskedEncoder)
class MaskedEncoderTransformer(EncoderTransformer):
    """A masked language model: p(x_t | text with x_t masked) (Devlin et al. 2019, section 3.1).

    As in BERT's released code, the logits are computed from Norm(GELU(h W + b)), with a bias if ``head_bias`` is set.
    """

    def __init__(self, config: MaskedEncoder) -> None:
        """Initialize from a configuration with a vocabulary size."""
        super().__init__(config)
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.transform_norm = build_norm(config.norm, config.d_model)
        self.unembedding = nn.Linear(config.d_model, self.embedding.tokens.num_embeddings, config.head_bias)
        if config.tie:
            self.unembedding.weight = self.embedding.tokens.weight

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return the last hidden state of each token, which ``unembedding`` maps to logits."""
        ctx = self.context(batch.source, observer)
        return self.transform_norm(F.gelu(self.transform(self.encode(batch.source, ctx))), ctx)


@implements(TextClassifier)
class TextClassifierTransformer(EncoderTransformer):
    """A text classifier: p(class | text) (Devlin et al. 2019, section 4.1).

    As in BERT's released code, the logits are computed from tanh(h W + b). h is the hidden state of the beginning-of-sequence token, or by
    default the mean of all hidden states.
    """

    def __init__(self, config: TextClassifier) -> None:
        """Initialize from a configuration with a vocabulary size and classes."""
        super().__init__(config)
        assert config.classes, "the classes come from the data"
        self.config: TextClassifier = config
        self.pooler = nn.Linear(config.d_model, config.d_model)
        self.dropout = Dropout(config.pooler_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the pooled vector of each text, which ``unembedding`` maps to logits."""
        ctx = self.context(batch.source, observer)
        states = self.encode(batch.source, ctx)
        pooled = states[:, 0] if self.config.pool == "start" else mean_pooled(states, batch.source).to(states)
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(self.pooler(pooled).tanh())


@implements(TextEmbedder)
class TextEmbedderTransformer(EncoderTransformer):
    """A text embedder: the mean of the last hidden states, trained contrastively on text pairs (Reimers & Gurevych 2019).

    The logits are cos(u_i, v_j) / temperature of each left side with all right sides of the batch, and the label of u_i is i. The loss is
    -log exp(cos(u_i, v_i) / t) / sum_j exp(cos(u_i, v_j) / t) (Gao et al. 2021, eq. 1 and 4).
    """

    def __init__(self, config: TextEmbedder) -> None:
        """Initialize from a configuration with a vocabulary size."""
        super().__init__(config)
        self.config: TextEmbedder = config

    def vectors(self, text: Sequences, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a unit vector per text."""
        states = self.encode(text, self.context(text, observer))
        return F.normalize(states[:, 0] if self.config.pool == "start" else mean_pooled(states, text), dim=-1)

    def batch_of(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TensorBatch:
        """Build a batch from the tokens of left sides and, as ``decoder_tokens``, of right sides."""
        return pair_of(tokens, attention_mask, decoder_tokens, decoder_attention_mask, self.config.pad_token_id)

    def hidden(self, batch: Pairs, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the unit vectors of the left sides."""
        return self.vectors(batch.source, observer)

    def output(
        self, batch: Pairs, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "batch d_model"], Float[Tensor, "batch d_model"]]:
        """Return the unit vectors of the left sides, and those of the right sides over the temperature; both pass the same sites."""
        return self.hidden(batch, observer), self.vectors(batch.target, observer) / self.config.temperature

    def tokens(self, site: str, batch: Pairs) -> list[Bool[Tensor, "batch length"]]:
        """Return the token masks of the left sides and of the right sides."""
        return [side.segments > 0 for side in (batch.source, batch.target)]

    def forward(self, batch: Any, observer: ActivationRecorder | None = None, **tensors: Tensor | None) -> Float[Tensor, "batch batch"]:
        """Return the cosine similarities of each left side with all right sides, over the temperature."""
        pairs = self.as_batch(batch, **tensors)
        return self.hidden(pairs, observer) @ self.vectors(pairs.target).T / self.config.temperature


def mean_pooled(states: Float[Tensor, "batch source d_model"], text: Sequences) -> Float[Tensor, "batch d_model"]:
    """Return the mean hidden state of each row, padding excluded, in float32 or wider."""
    real = (text.segments > 0).to(torch.promote_types(states.dtype, torch.float32))[:, :, None]
    return (states * real).sum(1) / real.sum(1)
