"""Schemas of routing over depth, which selects the tokens that each block processes."""

import math
from typing import Annotated, Literal

from pydantic import Field

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot


class DepthConfig(ComponentConfig):
    """Base schema of routing over depth."""

    def routed(self, index: int) -> bool:
        """Return whether block ``index`` of a stack, from 0, processes only selected tokens."""
        return False

    def n_chosen(self, n_tokens: int) -> int:
        """Return the number of tokens of a sequence that a routed block processes in training."""
        return n_tokens


AnyDepth = Annotated[DepthConfig, Slot("depth", DepthConfig)]


@register_component("depth")
class FullDepthConfig(DepthConfig):
    """Every block processes every token.

    Cost and use: The default.
    """

    kind: Literal["full"] = "full"


@register_component("depth")
class MixtureOfDepthsConfig(DepthConfig):
    """Mixture of depths (Raposo et al. 2024, eq. 1): x'_i = x_i + r_i f(X)_i for selected tokens, x'_i = x_i otherwise, r_i = w x_i + b.

    f is the block's contribution to the residual stream, and X holds only the selected tokens. Training selects the tokens with the largest
    scores, a fraction ``capacity`` of each row, so the selection depends on later tokens. Evaluation selects each token by its own score,
    if r_i > 0, in encoders too. A loss trains the router so that both selections agree: ``aux_loss_coef`` times the mean cross-entropy
    between sigmoid(r_i) and the selection of token i in training (section 3.5, first method).

    Cost and use: A routed block costs ``capacity`` of a full block, so a deeper model has equal cost; the paper's best setting is every
    second block with 12.5%. Selection is causal in evaluation but not in training. metrics.jsonl reports the fraction of tokens selected in
    evaluation (mod_fraction_causal), which is learned, and in training (mod_fraction). Inference skips a block that no row of the batch
    selects, so single texts gain most. With pooling = cls, the last block may skip the token that is classified; pooling = mean avoids
    this. Cannot be combined with experts or approximated attention; masks are dense even for sparse patterns.
    """

    kind: Literal["mod"] = "mod"
    capacity: float = Field(
        0.125, gt=0, le=1, description="fraction of each row's tokens that a routed block processes in training, rounded up"
    )
    every: int = Field(2, ge=1, description="one block in this many is routed, the last of each group")
    aux_loss_coef: float = Field(0.01, ge=0, description="weight of the router's loss, per routed block")

    def routed(self, index: int) -> bool:
        return index % self.every == self.every - 1

    def n_chosen(self, n_tokens: int) -> int:
        return math.ceil(self.capacity * n_tokens)
