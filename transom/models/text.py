"""What the families that write text share: what they read of a batch, and a map from vectors to logits."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config.model import Transformer
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


class TextModel(nn.Module, ABC):
    """A model of the next target token: its logits are a linear map of its last vectors.

    Attributes:
        config: what it was built from.
        unembedding: the output map.
    """

    config: Transformer
    unembedding: nn.Linear

    @abstractmethod
    def hidden(self, batch: Any, taps: Scope | None = None) -> Float[Tensor, "batch target d_model"]:
        """Return the last vectors, of which the logits are a linear map."""

    def forward(self, batch: Any, taps: Scope | None = None) -> Float[Tensor, "batch target vocab"]:
        """Return the logits of each next target token, given all that the model may see before it."""
        return self.unembedding(self.hidden(batch, taps))
