"""The encoder alone: a text in, and what stands behind its masks, the class of all of it or a vector for it, as in BERT."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.components import implements
from transom.config.model import Encoder, MaskedEncoder, TextClassifier, TextEmbedder, TokenTagger
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
        """Build embedding and encoder from a configuration whose vocabulary size is known."""
        super().__init__()
        assert config.vocab_size, "the vocabulary size comes from the tokenizer"
        self.config: Encoder = config
        tokens = nn.Embedding(config.n_embeddings, config.d_model)
        norm = build_norm(config.norm, config.d_model) if config.embedding_norm else None
        self.embedding = Embedding(tokens, build_position(config, causal=False), config.scale_embeddings, config.dropout, norm)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.rules = build_rules(config.attention, SAME_SEGMENT)

    def encode(self, text: Sequences, ctx: StackContext | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return a vector per token; ``ctx`` is what ``context`` built of the text, if it was built already."""
        ctx = ctx or self.context(text)
        return self.encoder(self.embedding(text.tokens, text.positions, ctx), ctx)

    def context(self, text: Sequences, observer: ActivationRecorder | None = None, dense: bool = False) -> StackContext:
        """Build the context of a pass: tokens see their own text, as each block's pattern has it; ``dense`` gives masks as matrices."""
        places = Places(text.positions, text.segments)
        contexts = build_contexts(self.embedding.position, places, places, self.rules, dense or self.encoder.routed)
        return StackContext(text.segments > 0, open_observer(observer, "encoder"), contexts, UNMASKED)

    def attention_context(self, attention: str, batch: Batch) -> AttentionContext:
        """Return the context of an attention for a batch, masks and biases dense."""
        return of_block(self.context(batch.source, dense=True).attentions, attention)


@implements(MaskedEncoder)
class MaskedEncoderTransformer(EncoderTransformer):
    """A masked language model: p(x_t | the text with x_t hidden) (Devlin et al. 2019, section 3.1).

    As in BERT's released code the logits are those of Norm(GELU(h W + b)); they have a bias of their own where ``head_bias`` says so.
    """

    def __init__(self, config: MaskedEncoder) -> None:
        """Build from a configuration whose vocabulary size is known."""
        super().__init__(config)
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.transform_norm = build_norm(config.norm, config.d_model)
        self.unembedding = nn.Linear(config.d_model, self.embedding.tokens.num_embeddings, config.head_bias)
        if config.tie:
            self.unembedding.weight = self.embedding.tokens.weight

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return a vector per token, of which the logits are a linear map."""
        ctx = self.context(batch.source, observer)
        return self.transform_norm(F.gelu(self.transform(self.encode(batch.source, ctx))), ctx)


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
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a vector per text, of which the logits are a linear map."""
        ctx = self.context(batch.source, observer)
        states = self.encode(batch.source, ctx)
        pooled = states[:, 0] if self.config.pool == "start" else mean_pooled(states, batch.source).to(states)
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(self.pooler(pooled).tanh())


@implements(TokenTagger)
class TokenTaggerTransformer(EncoderTransformer):
    """A tagger: p(tag_t | text) at every token, a linear map of its last vector (Devlin et al. 2019, section 4.1).

    A word of several tokens has the tag of its first one; which tokens those are is said by the batch.
    """

    def __init__(self, config: TokenTagger) -> None:
        """Build from a configuration whose vocabulary size and tags are known."""
        super().__init__(config)
        assert config.classes, "the tags come from the data"
        self.config: TokenTagger = config
        self.dropout = Dropout(config.classifier_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return a vector per token, of which the logits are a linear map."""
        return self.dropout(self.encode(batch.source, self.context(batch.source, observer)))


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

    def vectors(self, text: Sequences, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a vector of length 1 a text."""
        states = self.encode(text, self.context(text, observer))
        return F.normalize(states[:, 0] if self.config.pool == "start" else mean_pooled(states, text), dim=-1)

    def batch_of(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        decoder_tokens: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> TensorBatch:
        """Make a batch of the tokens of left sides and, as ``decoder_tokens``, of right sides."""
        return pair_of(tokens, attention_mask, decoder_tokens, decoder_attention_mask, self.config.pad_token_id)

    def hidden(self, batch: Pairs, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the vectors of the left sides."""
        return self.vectors(batch.source, observer)

    def output(
        self, batch: Pairs, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "batch d_model"], Float[Tensor, "batch d_model"]]:
        """Return the vectors of the left sides, and those of the right sides over the temperature; both pass the same sites."""
        return self.hidden(batch, observer), self.vectors(batch.target, observer) / self.config.temperature

    def tokens(self, site: str, batch: Pairs) -> list[Bool[Tensor, "batch length"]]:
        """Tell tokens from padding, of the left sides and then of the right sides."""
        return [side.segments > 0 for side in (batch.source, batch.target)]

    def forward(self, batch: Any, observer: ActivationRecorder | None = None, **tensors: Tensor | None) -> Float[Tensor, "batch batch"]:
        """Return the cosines of each left side with all right sides, over the temperature."""
        pairs = self.as_batch(batch, **tensors)
        return self.hidden(pairs, observer) @ self.vectors(pairs.target).T / self.config.temperature


def mean_pooled(states: Float[Tensor, "batch source d_model"], text: Sequences) -> Float[Tensor, "batch d_model"]:
    """Return the mean of each row's vectors, padding left out, in float32 at least."""
    real = (text.segments > 0).to(torch.promote_types(states.dtype, torch.float32))[:, :, None]
    return (states * real).sum(1) / real.sum(1)
