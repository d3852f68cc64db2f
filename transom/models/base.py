"""Base classes of models, and protocols of the batches that they read."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TextModelConfig, TransformerConfig
from transom.errors import ConfigError, TransomError
from transom.layers.context import ALL_PAIRS, AttentionContext, Part
from transom.layers.observe import ActivationObserver, ActivationRecorder, SiteEdits
from transom.layers.output_projection import OutputProjection
from transom.models.inputs import TensorBatch, TokenSequences


@runtime_checkable
class SequencesLike(Protocol):
    """Padded token sequences that a model reads; implemented by ``data.batch.PaddedSequences`` and ``models.inputs.TokenSequences``."""

    @property
    def tokens(self) -> Int[Tensor, "batch length"]: ...
    @property
    def positions(self) -> Int[Tensor, "#batch length"]: ...
    @property
    def segments(self) -> Int[Tensor, "batch length"]: ...
    @property
    def prefix(self) -> Bool[Tensor, "batch length"] | None: ...
    @property
    def text_length(self) -> int | None: ...
    @property
    def token_types(self) -> Int[Tensor, "batch length"] | None: ...


@runtime_checkable
class TextBatch(Protocol):
    """Batch of a language model: input tokens, starting with the beginning-of-sequence token."""

    @property
    def decoder_input(self) -> SequencesLike: ...


@runtime_checkable
class PairBatch(Protocol):
    """Batch of a sequence-to-sequence model: source tokens, and target tokens shifted right by one."""

    @property
    def source(self) -> SequencesLike: ...
    @property
    def decoder_input(self) -> SequencesLike: ...


class Network(nn.Module, ABC):
    """Base class of models, whose logits (per token, text or image) are a linear function of the last hidden states.

    Attributes:
        config: model configuration.
        unembedding: output projection to logits (lm_head in transformers).
        edits: edits of every pass, which ``transom.edits`` sets for a scope; None in normal use.
    """

    config: ModelConfig
    unembedding: nn.Linear
    edits: SiteEdits | None = None

    def __init__(self) -> None:
        """Register hooks by which tied parameters are saved under one name, and loaded if a state dict has one or all of their names."""
        super().__init__()
        self.register_state_dict_post_hook(_drop_tied_copies)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_restore_tied_copies)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    def open_observer(self, recorder: ActivationRecorder | None, stack: str, cached: bool = False) -> ActivationObserver | None:
        """Return an observer of a new pass through the stack named ``stack``, such as ``decoder``; None without a recorder and edits.

        Raises:
            ConfigError: edits are in force, and the pass is a decoding step with a cache: edits name positions in whole texts.
        """
        if self.edits is None:
            return None if recorder is None else recorder.start_pass(stack)
        if cached:
            raise ConfigError(
                "edits: expected a pass over whole texts, found a decoding step with a cache; decode with a run that transom.load returns,"
                " without early exit"
            )
        return (recorder or ActivationRecorder()).start_pass(stack, self.edits)

    @abstractmethod
    def last_hidden_state(self, batch: Any, observer: ActivationRecorder | None = None) -> Float[Tensor, "*positions d_model"]:
        """Return the last hidden states, which ``unembedding`` maps to logits."""

    def logit_factors(
        self, batch: Any, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "*positions d_model"], Float[Tensor, "vocab d_model"]]:
        """Return H and W with logits = H W^T before any soft-cap, so that a fused loss never has to store all logits."""
        return self.factor_logits(self.last_hidden_state(batch, observer))

    def factor_logits(
        self, hidden: Float[Tensor, "*positions d_model"]
    ) -> tuple[Float[Tensor, "*positions width"], Float[Tensor, "vocab width"]]:
        """Return H and W with logits = H W^T for these last hidden states, before any soft-cap.

        A bias becomes a column of W, with a column of ones in H. A scale of the logits multiplies H, which is smaller than W.
        """
        weight, bias = self.unembedding.weight, self.unembedding.bias
        if bias is not None:
            hidden, weight = torch.cat([hidden, hidden.new_ones(*hidden.shape[:-1], 1)], -1), torch.cat([weight, bias[:, None]], 1)
        return (self.unembedding.scale * hidden if isinstance(self.unembedding, OutputProjection) else hidden), weight

    @property
    def logit_softcap(self) -> float | None:
        """Bound c of the logits c tanh(H W^T / c), which a loss on ``logit_factors`` has to apply; None without a soft-cap."""
        unembedding = getattr(self, "unembedding", None)  # an embedder has none
        return unembedding.softcap if isinstance(unembedding, OutputProjection) else None

    @property
    def tied(self) -> dict[str, str]:
        """Maps each duplicate name of a tied parameter to the name under which the parameter is saved."""
        first: dict[int, str] = {}
        named = self.named_parameters(remove_duplicate=False)
        return {name: kept for name, parameter in named if (kept := first.setdefault(id(parameter), name)) != name}

    @abstractmethod
    def attention_context(self, attention: str, batch: Any, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return the context of an attention layer for a batch, with dense masks and biases, for inspection.

        Args:
            attention: address of the layer, such as ``decoder.blocks.0.cross``.
            batch: input batch.
            part: queries and keys to which mask and bias are restricted.
        """

    def token_masks(self, site: str, batch: Any) -> list[Bool[Tensor, "batch length"]]:
        """Return the token mask (True at tokens) at ``site``, once per pass of ``logit_factors`` through the block of this site."""
        token_mask = self.attention_context(site, batch).token_mask
        assert token_mask is not None, "a training batch has a token mask"
        return [token_mask]

    def forward(
        self, batch: Any, observer: ActivationRecorder | None = None, **tensors: Tensor | None
    ) -> Float[Tensor, "*positions vocab"]:
        """Return the logits.

        Args:
            batch: a batch, or a tensor of token ids or pixels, from which ``make_batch`` builds a batch.
            observer: records and edits activations.
            tensors: further arguments of ``make_batch``, such as ``attention_mask``; only if ``batch`` is a tensor.
        """
        return self.unembedding(self.last_hidden_state(self.as_batch(batch, **tensors), observer))

    def as_batch(self, batch: Any, **tensors: Tensor | None) -> Any:
        """Convert a tensor to a batch with ``make_batch``; return a batch unchanged.

        Raises:
            TransomError: ``tensors`` are given although ``batch`` is not a tensor, ``make_batch`` rejects the shapes, or a text has more
                tokens than the position table.
        """
        if isinstance(batch, Tensor):
            made = self.make_batch(batch, **tensors)
            for text in (made.source, made.decoder_input):
                self._check_length(text)
            return made
        if tensors:
            names = ", ".join(tensors)
            raise TransomError(f"{names}: expected only with a tensor of token ids, found with a batch, which has its own; omit {names}")
        return batch

    def _check_length(self, text: TokenSequences | None) -> None:
        """Raise TransomError if a text has more tokens than the position table."""
        c = self.config
        if text is None or not isinstance(c, TransformerConfig) or text.tokens.shape[1] <= c.n_positions or not c.position_table:
            return  # the length of the rows is known without waiting for a GPU
        if (length := int(text.positions.max()) + 1) > c.n_positions:
            raise TransomError(
                f"tokens: expected texts of at most max_seq_len = {c.n_positions} tokens, found {length}; cut the text, or build the model"
                " with a larger max_seq_len"
            )

    def make_batch(self, tokens: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Build a batch from token ids (batch, length) and a mask of the same shape: 1 at tokens, 0 at padding, left or right.

        Raises:
            TransomError: ``tokens`` are not integers of shape (batch, length), or ``attention_mask`` has another shape.
        """
        sequences = TokenSequences.from_tokens(tokens, attention_mask, getattr(self.config, "pad_token_id", None))
        return TensorBatch(source=sequences, decoder_input=sequences)


def _drop_tied_copies(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Remove the duplicate names of tied parameters from a state dict."""
    assert isinstance(model, Network)
    for name in model.tied:
        state.pop(prefix + name, None)


def _restore_tied_copies(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the duplicate names of tied parameters to a state dict before loading."""
    assert isinstance(model, Network)
    for name, kept in model.tied.items():
        if prefix + kept in state:
            state.setdefault(prefix + name, state[prefix + kept])


class GenerativeModel(Network):
    """Base class of models that generate text token by token; search and sampling call ``encode``, ``start`` and ``step``."""

    config: TextModelConfig

    @abstractmethod
    def encode(self, source: SequencesLike, observer: ActivationRecorder | None = None) -> Any:
        """Encode the sources; a decoder-only model returns the prompts unchanged."""

    @abstractmethod
    def start(self, memory: Any, n_beams: int, max_length: int) -> Any:
        """Return a new cache, whose row ``s * n_beams + b`` belongs to beam b of source s; a decoder-only model first reads the prompts."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "rows new"], cache: Any, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Append the next tokens of each row to the cache; return the logits of the token that follows each of them."""


class Seq2SeqModel(GenerativeModel):
    """Base class of sequence-to-sequence models, Transformer or recurrent."""

    config: EncoderDecoderConfig


class LanguageModel(GenerativeModel):
    """Base class of decoder-only language models, Transformer or recurrent."""
