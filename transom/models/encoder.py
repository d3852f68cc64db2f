"""Encoder-only Transformers, such as BERT: masked language model, text classifier and text embedder."""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.component_registry import implements
from transom.config.model import EncoderConfig, MaskedLMConfig, TextClassifierConfig, TextEmbedderConfig
from transom.errors import TransomError
from transom.layers.activation import ACTIVATIONS, POOLER_ACTIVATIONS
from transom.layers.context import ALL_PAIRS, UNMASKED, AttentionContext, Part, StackContext
from transom.layers.dropout import Dropout
from transom.layers.embedding import build_embedding
from transom.layers.feed_forward import Linear
from transom.layers.masks.attention_contexts import build_contexts, context_of, select_pairs
from transom.layers.masks.mask_rules import SAME_SEGMENT, TokenPositions, build_mask_rules
from transom.layers.norm import build_norm
from transom.layers.observe import ActivationRecorder, observe
from transom.layers.output_projection import build_output_projection
from transom.layers.stack import Stack
from transom.models.base import Network, SequencesLike
from transom.models.inputs import TensorBatch, make_pair_batch


@runtime_checkable
class EncoderBatch(Protocol):
    """Batch of an encoder-only model: the input tokens."""

    @property
    def source(self) -> SequencesLike: ...


@runtime_checkable
class TextPairBatch(Protocol):
    """Batch of a text embedder: the left texts of pairs (``source``) and the right texts (``target``)."""

    @property
    def source(self) -> SequencesLike: ...
    @property
    def target(self) -> SequencesLike: ...


class EncoderOnlyTransformer(Network):
    """Base class of encoder-only models: embedding and bidirectional encoder (Devlin et al. 2019, section 3)."""

    def __init__(self, config: EncoderConfig) -> None:
        """Initialize embedding and encoder; ``config.vocab_size`` must be set."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: EncoderConfig = config
        tokens = nn.Embedding(config.n_embeddings, config.d_model)
        self.embedding = build_embedding(config, tokens, causal=False)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.mask_rules = build_mask_rules(config.attention, SAME_SEGMENT)

    def encode(self, text: SequencesLike, ctx: StackContext | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return the last hidden state of each token; ``ctx`` is the result of ``context``, which is computed if None."""
        ctx = ctx or self.context(text)
        return self.encoder(self.embedding(text.tokens, text.positions, ctx, text.token_types), ctx)

    def head(
        self, states: Float[Tensor, "batch source d_model"], text: SequencesLike, ctx: StackContext
    ) -> Float[Tensor, "batch *source d_model"]:
        """Map the encoder's output for ``text`` to the last hidden states; by default return it unchanged."""
        return states

    def last_hidden_state(self, batch: EncoderBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch *source d_model"]:
        """Return ``head`` of the encoder's output for ``batch.source``, which ``unembedding`` maps to logits."""
        ctx = self.context(batch.source, observer)
        return self.head(self.encode(batch.source, ctx), batch.source, ctx)

    def make_batch(self, tokens: Tensor, attention_mask: Tensor | None = None, token_types: Tensor | None = None) -> TensorBatch:
        """Build a batch from token ids (batch, length), a mask of the same shape, and the type of each token, 0 by default.

        Raises:
            TransomError: ``tokens`` are not integers of shape (batch, length), ``attention_mask`` or ``token_types`` has another shape, or
                the model has no such token type.
        """
        batch = super().make_batch(tokens, attention_mask)
        if token_types is None or batch.source is None:
            return batch
        n = self.config.n_token_types
        if token_types.shape != tokens.shape or not 0 <= int(token_types.min()) <= int(token_types.max()) < n:
            raise TransomError(
                f"token_types: expected the shape of the tokens, {tuple(tokens.shape)}, and types below n_token_types = {n}, found"
                f" {tuple(token_types.shape)}, types up to {int(token_types.max())}; give fewer types, or build the model with more"
            )
        sequences = replace(batch.source, token_types=token_types)
        return TensorBatch(source=sequences, decoder_input=sequences)

    def context(
        self, text: SequencesLike, observer: ActivationRecorder | None = None, dense: bool = False, part: Part = ALL_PAIRS
    ) -> StackContext:
        """Build the context of a pass: tokens attend to the tokens of their segment that the sparsity pattern allows.

        ``dense`` builds masks as boolean matrices, also for long rows, whose masks are block-sparse otherwise, and ``part`` restricts them
        to some queries and keys, for inspection.
        """
        lengths = self.embedding.position.text_lengths(text.positions, text.segments)
        tokens = TokenPositions(text.positions, text.segments, lengths=lengths)
        queries, keys = select_pairs(tokens, part)
        contexts = build_contexts(self.embedding.position, queries, keys, self.mask_rules, dense or self.encoder.routed)
        return StackContext(text.segments > 0, self.open_observer(observer, "encoder"), contexts, UNMASKED)

    def attention_context(self, attention: str, batch: EncoderBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return the context of an attention layer for a batch, with dense mask and bias, for inspection."""
        return context_of(self.context(batch.source, dense=True, part=part).attention_contexts, attention)


@implements(MaskedLMConfig)
class MaskedEncoderTransformer(EncoderOnlyTransformer):
    """A masked language model: p(x_t | text with x_t masked) (Devlin et al. 2019, section 3.1).

    As in BERT's released code, the logits are computed from Norm(f(h W + b)), where f is GELU unless ``head_activation`` selects another
    function; the output projection has a bias if ``head_bias`` is set.
    """

    def __init__(self, config: MaskedLMConfig) -> None:
        """Initialize all layers; ``config.vocab_size`` must be set."""
        super().__init__(config)
        self.activation = ACTIVATIONS[config.head_activation]
        self.transform = Linear(config.d_model, config.d_model)
        self.transform_norm = build_norm(config.norm, config.d_model)
        self.unembedding = build_output_projection(config, self.embedding.tokens.num_embeddings)
        if config.tie_embeddings:
            self.unembedding.weight = self.embedding.tokens.weight

    def head(
        self, states: Float[Tensor, "batch source d_model"], text: SequencesLike, ctx: StackContext
    ) -> Float[Tensor, "batch source d_model"]:
        """Return Norm(f(h W + b)) for the state h of each token."""
        return self.transform_norm(self.activation(self.transform(states)), ctx)


@implements(TextClassifierConfig)
class TextClassifierTransformer(EncoderOnlyTransformer):
    """A text classifier: p(class | text) (Devlin et al. 2019, section 4.1).

    As in BERT's released code, the logits are computed from tanh(h W + b). h is the hidden state of the beginning-of-sequence token, or by
    default the mean of all hidden states. ``pooler_activation`` selects another function (DistilBERT: ReLU); without ``pooler`` the logits
    are computed from h itself.

    If texts have any number of labels (``config.multi_label``), the sigmoid of a logit is the probability of a label. The buffer
    ``thresholds`` then holds the probability from which each label is predicted; validation sets it.
    """

    def __init__(self, config: TextClassifierConfig) -> None:
        """Initialize all layers; ``config.vocab_size`` and ``config.classes`` must be set."""
        super().__init__(config)
        assert config.classes, "the classes come from the data"
        self.config: TextClassifierConfig = config
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        self.activation = POOLER_ACTIVATIONS[config.pooler_activation]
        self.pooler_dropout, self.dropout = Dropout(config.pooler_input_dropout), Dropout(config.pooler_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)
        if config.multi_label:
            self.register_buffer("thresholds", torch.full((len(config.classes),), 0.5))

    def head(self, states: Float[Tensor, "batch source d_model"], text: SequencesLike, ctx: StackContext) -> Float[Tensor, "batch d_model"]:
        """Return the pooled vector of each text."""
        pooled = first_states(states, text) if self.config.pooling == "cls" else mean_pool(states, text).to(states)
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(self.apply_pooler(self.pooler_dropout(pooled)))

    def apply_pooler(self, pooled: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """Apply the pooler to pooled vectors, if the model has one."""
        return pooled if self.pooler is None else self.activation(self.pooler(pooled))


@implements(TextEmbedderConfig)
class TextEmbedderTransformer(EncoderOnlyTransformer):
    """A text embedder: the mean of the last hidden states, trained contrastively on text pairs (Reimers & Gurevych 2019).

    With u_i and v_i the vectors of the left and the right text of pair i, the logits of u_i are cos(u_i, v_j) / t for all right texts j of
    the batch, and the label of u_i is i; t is the temperature. The loss is -log (exp(cos(u_i, v_i) / t) / sum_j exp(cos(u_i, v_j) / t))
    (Gao et al. 2021, eq. 1 and 4).
    """

    def __init__(self, config: TextEmbedderConfig) -> None:
        """Initialize all layers; ``config.vocab_size`` must be set."""
        super().__init__(config)
        self.config: TextEmbedderConfig = config

    def vectors(self, text: SequencesLike, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a unit vector per text."""
        ctx = self.context(text, observer)
        return self.head(self.encode(text, ctx), text, ctx)

    def head(self, states: Float[Tensor, "batch source d_model"], text: SequencesLike, ctx: StackContext) -> Float[Tensor, "batch d_model"]:
        """Pool the states of each text to a unit vector."""
        return F.normalize(first_states(states, text) if self.config.pooling == "cls" else mean_pool(states, text), dim=-1)

    def make_batch(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TensorBatch:
        """Build a batch of text pairs: ``tokens`` are the left texts, ``decoder_tokens`` the right texts, each with its mask."""
        return make_pair_batch(tokens, attention_mask, decoder_tokens, decoder_attention_mask, self.config.pad_token_id)

    def logit_factors(
        self, batch: TextPairBatch, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "batch d_model"], Float[Tensor, "batch d_model"]]:
        """Return H, the unit vectors of the left texts, and W, those of the right texts over the temperature. The encoder runs twice."""
        return self.last_hidden_state(batch, observer), self.vectors(batch.target, observer) / self.config.temperature

    def token_masks(self, site: str, batch: TextPairBatch) -> list[Bool[Tensor, "batch length"]]:
        """Return the token mask of the left texts and the token mask of the right texts."""
        return [side.segments > 0 for side in (batch.source, batch.target)]

    def forward(self, batch: Any, observer: ActivationRecorder | None = None, **tensors: Tensor | None) -> Float[Tensor, "batch batch"]:
        """Return the cosine similarity of each left text with all right texts of the batch, divided by the temperature."""
        pairs = self.as_batch(batch, **tensors)
        return self.last_hidden_state(pairs, observer) @ self.vectors(pairs.target).T / self.config.temperature


def first_states(states: Float[Tensor, "batch source d_model"], text: SequencesLike) -> Float[Tensor, "batch d_model"]:
    """Return the hidden state of the first token of each row, which padding on the left may precede."""
    first = (text.segments > 0).long().argmax(1)
    return states[torch.arange(len(states), device=states.device), first]


def mean_pool(states: Float[Tensor, "batch source d_model"], text: SequencesLike) -> Float[Tensor, "batch d_model"]:
    """Return the mean hidden state of each row, padding excluded, in float32 or wider."""
    token_mask = (text.segments > 0).to(torch.promote_types(states.dtype, torch.float32))[:, :, None]
    return (states * token_mask).sum(1) / token_mask.sum(1)
