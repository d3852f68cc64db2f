"""The schemas of how many of a stack's blocks a token passes."""

import math
from typing import Annotated, Literal

from pydantic import Field

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot


class DepthConfig(ComponentConfig):
    """Base schema of routing over depth."""

    def routed(self, place: int) -> bool:
        """Return whether only selected tokens pass the block at an index of its stack, from 0."""
        return False

    def n_chosen(self, n_tokens: int) -> int:
        """Count the tokens of a sequence that a routed block takes in training."""
        return n_tokens


AnyDepth = Annotated[DepthConfig, Slot("depth", DepthConfig)]


@register_component("depth")
class FullDepthConfig(DepthConfig):
    """Every token passes every block.

    Cost and use: The usual one.
    """

    kind: Literal["full"] = "full"


@register_component("depth")
class MixtureOfDepthsConfig(DepthConfig):
    """Mixture of depths (Raposo et al. 2024, eq. 1): x'_i = x_i + r_i f(X)_i for chosen tokens, x'_i = x_i for the others, r_i = w x_i + b.

    f is the block's contribution to the residual stream, X the selected tokens alone. Training selects the ``capacity`` largest scores per
    row. This depends on later tokens, so in evaluation each token decides alone, by r_i > 0, in encoders too; a loss trains the router to
    agree, ``aux_loss_coef`` times the mean cross-entropy between sigmoid(r_i) and whether token i was chosen
    (section 3.5, first method).

    Cost and use: A routed block costs the fraction capacity of a block, so deeper models cost the same; the paper's best is every second
    block and 12.5%. Selection is not causal in training, but is in evaluation. The number of tokens selected in evaluation is learned:
    metrics.jsonl has it (mod_fraction_causal) and training's (mod_fraction). Inference skips a block if no row of the batch
    chose it, so one text at a time gains most. Where one token is classified (pooling = start or cls) it may pass the last block by, which
    then does nothing for it; pooling = mean has no such token. Not with experts or approximated attention; masks are dense,
    however sparse.
    """

    kind: Literal["mod"] = "mod"
    capacity: float = Field(0.125, gt=0, le=1, description="share of each row's tokens that a routed block takes in training, rounded up")
    every: int = Field(2, ge=1, description="the last of each so many blocks is routed")
    aux_loss_coef: float = Field(0.01, ge=0, description="of the loss by which tokens learn to decide alone, once a routed block")

    def routed(self, place: int) -> bool:
        """Route the last of every ``every`` blocks."""
        return place % self.every == self.every - 1

    def n_chosen(self, n_tokens: int) -> int:
        """Take a share, rounded up."""
        return math.ceil(self.capacity * n_tokens)
