"""What all families share: what they read of a batch, and a map from vectors to logits."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.architecture import Architecture, TextNetwork, TwoSided
from transom.errors import TransomError
from transom.layers.context import AttentionContext
from transom.layers.observe import ActivationRecorder
from transom.models.inputs import TensorBatch, TokenSequences


@runtime_checkable
class Sequences(Protocol):
    """What a model reads of one side of a batch; see ``data.batch.Sequences``."""

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
    """What a language model reads of a batch: the text, from its start symbol on."""

    @property
    def target(self) -> Sequences: ...


@runtime_checkable
class PairBatch(Protocol):
    """What a model of pairs reads of a batch: the source, and the target shifted one place to the right."""

    @property
    def source(self) -> Sequences: ...
    @property
    def target(self) -> Sequences: ...


class Network(nn.Module, ABC):
    """A model whose logits are a linear map of its last vectors: of each next token, of each masked one, or of a whole text's class.

    Attributes:
        config: what it was built from.
        unembedding: the output map.
    """

    config: Architecture
    unembedding: nn.Linear

    def __init__(self) -> None:
        """Save tied tensors once; load them from states that have them once or more often."""
        super().__init__()
        self.register_state_dict_post_hook(_save_once)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_load_all_names)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @abstractmethod
    def hidden(self, batch: Any, observer: ActivationRecorder | None = None) -> Float[Tensor, "*places d_model"]:
        """Return the last vectors, of which the logits are a linear map."""

    def output(
        self, batch: Any, observer: ActivationRecorder | None = None
    ) -> tuple[Float[Tensor, "*places d_model"], Float[Tensor, "vocab d_model"]]:
        """Return the last vectors and the matrix of the map, for a loss that never holds all logits."""
        return self.head(self.hidden(batch, observer))

    def head(self, hidden: Float[Tensor, "*places d_model"]) -> tuple[Float[Tensor, "*places width"], Float[Tensor, "vocab width"]]:
        """Return vectors and a matrix whose product is the logits; a bias of the map is a column of the matrix, times 1."""
        weight, bias = self.unembedding.weight, self.unembedding.bias
        if bias is None:
            return hidden, weight
        return torch.cat([hidden, hidden.new_ones(*hidden.shape[:-1], 1)], -1), torch.cat([weight, bias[:, None]], 1)

    @property
    def tied(self) -> dict[str, str]:
        """Other names of parameters, and the names that they are saved under."""
        first: dict[int, str] = {}
        named = self.named_parameters(remove_duplicate=False)
        return {name: kept for name, parameter in named if (kept := first.setdefault(id(parameter), name)) != name}

    @abstractmethod
    def attention_context(self, attention: str, batch: Any) -> AttentionContext:
        """Return the context of an attention for a batch, masks and biases dense.

        Args:
            attention: its address in the model, as ``decoder.blocks.0.cross``.
            batch: what the model reads.
        """

    def tokens(self, site: str, batch: Any) -> list[Bool[Tensor, "batch length"]]:
        """Tell tokens, True, from padding at a site, once for each time that ``output`` passes it; arguments as above."""
        token_mask = self.attention_context(site, batch).token_mask
        assert token_mask is not None, "what is learnt from may be padded"
        return [token_mask]

    def forward(self, batch: Any, observer: ActivationRecorder | None = None, **tensors: Tensor | None) -> Float[Tensor, "*places vocab"]:
        """Return the logits of what stands at each place, given all that the model may see.

        Args:
            batch: what the model reads, or the tensor that ``batch_of`` makes it from.
            observer: reads and edits sites.
            tensors: what ``batch_of`` takes beside, as ``attention_mask``.
        """
        return self.unembedding(self.hidden(self.as_batch(batch, **tensors), observer))

    def as_batch(self, batch: Any, **tensors: Tensor | None) -> Any:
        """Return a batch as it is, and one made of tensors by ``batch_of``.

        Raises:
            TransomError: tensors are given beside a batch, or do not fit.
        """
        if isinstance(batch, Tensor):
            return self.batch_of(batch, **tensors)
        if tensors:
            raise TransomError(f"{', '.join(tensors)}: expected beside tokens, found beside a batch, which has its own; leave it out")
        return batch

    def batch_of(self, tokens: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Make a batch of token ids (batch, length) and a mask of the same shape, 1 at tokens and 0 at padding on either side.

        Raises:
            TransomError: the shapes do not fit.
        """
        sequences = TokenSequences.of(tokens, attention_mask, getattr(self.config, "pad_token_id", None))
        return TensorBatch(source=sequences, target=sequences)


def _save_once(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Leave each tied tensor in a state under one name."""
    assert isinstance(model, Network)
    for name in model.tied:
        state.pop(prefix + name, None)


def _load_all_names(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give a saved state all names of tied tensors."""
    assert isinstance(model, Network)
    for name, kept in model.tied.items():
        if prefix + kept in state:
            state.setdefault(prefix + name, state[prefix + kept])


class Writer(Network):
    """A network that writes a text a token at a time: what a search asks of it."""

    config: TextNetwork

    @abstractmethod
    def encode(self, source: Sequences, observer: ActivationRecorder | None = None) -> Any:
        """Read the sources, or take the prompts."""

    @abstractmethod
    def start(self, memory: Any, n_beams: int, max_length: int) -> Any:
        """Prepare step-by-step decoding; row ``source * n_beams + beam``."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, "rows new"], cache: Any, observer: ActivationRecorder | None = None
    ) -> Float[Tensor, "rows new vocab"]:
        """Read the rows' next tokens; return the logits of what follows each."""


class Seq2SeqNetwork(Writer):
    """A network of any kind that reads a source and writes a target."""

    config: TwoSided


class LanguageNetwork(Writer):
    """A network of any kind that goes on with a text."""
