"""Base classes of models, and protocols of the batches that they read."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.architecture import EncoderDecoderConfig, ModelConfig, TextModelConfig
from transom.errors import TransomError
from transom.layers.context import AttentionContext
from transom.layers.observe import ActivationRecorder
from transom.models.inputs import TensorBatch, TokenSequences


@runtime_checkable
class SequencesLike(Protocol):
    """Padded token sequences as a model reads them; ``data.batch.PaddedSequences`` and ``models.inputs.TokenSequences`` implement it."""

    @property
    def tokens(self) -> Int[Tensor, "batch length"]: ...
    @property
    def positions(self) -> Int[Tensor, "#batch length"]: ...
    @property
    def segments(self) -> Int[Tensor, "batch length"]: ...
    @property
    def prefix(self) -> Bool[Tensor, "batch length"] | None: ...


@runtime_checkable
class TextBatch(Protocol):
    """Batch of a language model: input tokens, from the beginning-of-sequence token."""

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
    """A model whose logits are a linear function of its last hidden states: per next token, per masked token, or per text or image.

    Attributes:
        config: model configuration.
        unembedding: output projection to logits (lm_head in transformers).
    """

    config: ModelConfig
    unembedding: nn.Linear

    def __init__(self) -> None:
        """Register hooks that save tied parameters once and load them from state dicts that have them once or several times."""
        super().__init__()
        self.register_state_dict_post_hook(_drop_tied_copies)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_restore_tied_copies)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @abstractmethod
    def last_hidden_state(self, batch: Any, observer: ActivationRecorder | None = None) -> Float[Tensor, "*positions d_model"]:
        """Return the last hidden states, which ``unembedding`` maps to logits."""

    def logit_factors(
        self, batch: Any, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "*positions d_model"], Float[Tensor, "vocab d_model"]]:
        """Return H and W with logits = H W^T, for a fused loss that never materializes all logits."""
        return self.factor_logits(self.last_hidden_state(batch, observer))

    def factor_logits(
        self, hidden: Float[Tensor, "*positions d_model"]
    ) -> tuple[Float[Tensor, "*positions width"], Float[Tensor, "vocab width"]]:
        """Return H and W with logits = H W^T; a bias becomes a column of W, with a column of ones in H."""
        weight, bias = self.unembedding.weight, self.unembedding.bias
        if bias is None:
            return hidden, weight
        return torch.cat([hidden, hidden.new_ones(*hidden.shape[:-1], 1)], -1), torch.cat([weight, bias[:, None]], 1)

    @property
    def tied(self) -> dict[str, str]:
        """Duplicate name of each tied parameter, and the name under which it is saved."""
        first: dict[int, str] = {}
        named = self.named_parameters(remove_duplicate=False)
        return {name: kept for name, parameter in named if (kept := first.setdefault(id(parameter), name)) != name}

    @abstractmethod
    def attention_context(self, attention: str, batch: Any) -> AttentionContext:
        """Return the context of an attention layer for a batch, with dense masks and biases, for inspection.

        Args:
            attention: address of the layer, such as ``decoder.blocks.0.cross``.
            batch: input batch.
        """

    def token_masks(self, site: str, batch: Any) -> list[Bool[Tensor, "batch length"]]:
        """Return the token mask of a site, one per pass of ``logit_factors`` through it; arguments as above."""
        token_mask = self.attention_context(site, batch).token_mask
        assert token_mask is not None, "a training batch has a token mask"
        return [token_mask]

    def forward(
        self, batch: Any, observer: ActivationRecorder | None = None, **tensors: Tensor | None
    ) -> Float[Tensor, "*positions vocab"]:
        """Return the logits.

        Args:
            batch: a batch, or a tensor of token ids or pixels as ``make_batch`` takes it.
            observer: records and edits activations.
            tensors: further arguments of ``make_batch``, such as ``attention_mask``.
        """
        return self.unembedding(self.last_hidden_state(self.as_batch(batch, **tensors), observer))

    def as_batch(self, batch: Any, **tensors: Tensor | None) -> Any:
        """Convert a tensor to a batch by ``make_batch``; return a batch unchanged.

        Raises:
            TransomError: tensors are given with a batch, or their shapes do not fit.
        """
        if isinstance(batch, Tensor):
            return self.make_batch(batch, **tensors)
        if tensors:
            raise TransomError(f"{', '.join(tensors)}: expected with token ids, found with a batch, which has its own; leave it out")
        return batch

    def make_batch(self, tokens: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Build a batch from token ids (batch, length) and a mask of the same shape: 1 at tokens, 0 at padding, left or right.

        Raises:
            TransomError: the shapes do not fit.
        """
        sequences = TokenSequences.from_tokens(tokens, attention_mask, getattr(self.config, "pad_token_id", None))
        return TensorBatch(source=sequences, decoder_input=sequences)


def _drop_tied_copies(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Remove duplicates of tied parameters from a state dict."""
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
    """A model that generates text token by token; search and sampling call these methods."""

    config: TextModelConfig

    @abstractmethod
    def encode(self, source: SequencesLike, observer: ActivationRecorder | None = None) -> Any:
        """Encode the sources; a decoder-only model returns the prompts."""

    @abstractmethod
    def start(self, memory: Any, n_beams: int, max_length: int) -> Any:
        """Allocate (and prefill) the cache for decoding; beam b of source s is row ``s * n_beams + b``."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "rows new"], cache: Any, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Append the next tokens of each row to the cache; return the logits of the token after each."""


class Seq2SeqModel(GenerativeModel):
    """A sequence-to-sequence model: Transformer or recurrent."""

    config: EncoderDecoderConfig


class LanguageModel(GenerativeModel):
    """A language model: Transformer or recurrent."""
