"""LoRA: low-rank adaptation of a linear layer (Hu et al. 2022)."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.adapter import LoraConfig
from transom.layers.dropout import Dropout


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank update: W x + b + (alpha / rank) B A Dropout(x) (Hu et al. 2022, eq. 3).

    A is ``lora_a``, B is ``lora_b``. B is initialized to zeros, so that at first the output equals W x + b.
    """

    def __init__(self, linear: nn.Linear, config: LoraConfig) -> None:
        """Share weight and bias with ``linear``; initialize A from the default random generator."""
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = config.alpha / config.rank
        self.lora_a = nn.Parameter(linear.weight.new_empty(config.rank, linear.in_features).normal_(std=linear.in_features**-0.5))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, config.rank))
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes d_out"]:
        """Apply the linear layer and the low-rank update."""
        return super().forward(x) + self.scale * F.linear(F.linear(self.dropout(x), self.lora_a), self.lora_b)

    def merged_weight(
        self, weight: Float[Tensor, "d_out d_in"], a: Float[Tensor, "rank d_in"], b: Float[Tensor, "d_out rank"]
    ) -> Float[Tensor, "d_out d_in"]:
        """Return the merged weight W + (alpha / rank) B A."""
        return weight + self.scale * b @ a
