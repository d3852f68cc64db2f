"""The output projection of models with a vocabulary: hidden states to logits."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.architecture import VocabularyModelConfig


class OutputProjection(nn.Linear):
    """Scaled and soft-capped logits: z = c tanh(s (W h + b) / c) (Gemma Team 2024, section 2; s as in Raffel et al. 2020).

    Without a cap, z = s (W h + b).

    Attributes:
        scale: the factor s, ``logit_scale`` of the recipe.
        softcap: the bound c, ``logit_softcap`` of the recipe; None for no cap.
    """

    def __init__(self, config: VocabularyModelConfig, vocab_size: int) -> None:
        """Initialize W (d_model to vocab_size) and, with ``config.head_bias``, b."""
        super().__init__(config.d_model, vocab_size, config.head_bias)
        self.scale, self.softcap = config.logit_scale, config.logit_softcap

    def forward(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes vocab"]:
        """Compute the logits of each hidden state."""
        return soft_cap(self.scale * super().forward(x), self.softcap)


def soft_cap(logits: Float[Tensor, "*axes"], cap: float | None) -> Float[Tensor, "*axes"]:
    """Bound logits to the interval from -c to c: c tanh(z / c); return them unchanged if ``cap`` is None."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def build_output_projection(config: VocabularyModelConfig, vocab_size: int) -> nn.Linear:
    """Build the output projection: a plain linear layer, for which more fast paths exist, without scale and cap."""
    if config.logit_scale == 1.0 and config.logit_softcap is None:
        return nn.Linear(config.d_model, vocab_size, config.head_bias)
    return OutputProjection(config, vocab_size)


def logit_weights(unembedding: nn.Linear) -> tuple[Float[Tensor, "vocab d_model"], Float[Tensor, "vocab"] | None]:
    """Return weight and bias of the linear map to the logits before any soft-cap: those of the layer, times its scale."""
    weight, bias = unembedding.weight.detach(), None if unembedding.bias is None else unembedding.bias.detach()
    if not isinstance(unembedding, OutputProjection):
        return weight, bias
    return unembedding.scale * weight, None if bias is None else unembedding.scale * bias
