"""What all families share: what they read of a batch, and a map from vectors to logits."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.architecture import Architecture
from transom.layers.sight import Sight
from transom.layers.tap import Scope


@runtime_checkable
class Sequences(Protocol):
    """What a model reads of one side of a batch; see ``inputs.batch.Sequences``."""

    @property
    def tokens(self) -> Int[Tensor, "batch length"]: ...
    @property
    def positions(self) -> Int[Tensor, "#batch length"]: ...
    @property
    def segments(self) -> Int[Tensor, "batch length"]: ...


class Network(nn.Module, ABC):
    """A model whose logits are a linear map of its last vectors: of each next token, of each masked one, or of a whole text's class.

    Attributes:
        config: what it was built from.
        unembedding: the output map.
    """

    config: Architecture
    unembedding: nn.Linear

    @abstractmethod
    def hidden(self, batch: Any, taps: Scope | None = None) -> Float[Tensor, "*places d_model"]:
        """Return the last vectors, of which the logits are a linear map."""

    def output(self, batch: Any) -> tuple[Float[Tensor, "*places d_model"], Float[Tensor, "vocab d_model"]]:
        """Return the last vectors and the matrix of the map, for a loss that never holds all logits."""
        return self.hidden(batch), self.unembedding.weight

    @abstractmethod
    def sight(self, attention: str, batch: Any) -> Sight:
        """Return what the queries of an attention may see of a batch, masks and biases written out.

        Args:
            attention: its address in the model, as ``decoder.blocks.0.cross``.
            batch: what the model reads.
        """

    def forward(self, batch: Any, taps: Scope | None = None) -> Float[Tensor, "*places vocab"]:
        """Return the logits of what stands at each place, given all that the model may see."""
        return self.unembedding(self.hidden(batch, taps))
