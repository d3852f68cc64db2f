"""Schemas of adapters, which fine-tune a model with frozen weights."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot

TargetModule = Literal["attn.q", "attn.k", "attn.v", "attn.o", "cross.q", "cross.k", "cross.v", "cross.o", "ff.gate", "ff.up", "ff.down"]
"""Linear layers of a block, by the end of their path; in a mixture of experts, the ``ff`` layers of all experts are included."""


AnyAdapter = Annotated[ComponentConfig, Slot("adapter")]


@register_component("adapter")
class LoraConfig(ComponentConfig):
    """Low-rank adaptation (Hu et al. 2022, eq. 3): W x + (alpha / rank) B A x, with frozen W and initial B = 0.

    A is drawn from a normal distribution of standard deviation d_in^-0.5, which the paper does not specify. Besides A and B, only weights
    that the original run does not have are trained, such as a classifier's output layer. Weight averaging applies to A and B separately.

    Cost and use: rank * (d_in + d_out) parameters per matrix instead of d_in * d_out, no gradients or optimizer state for the rest, and
    small checkpoints; needs a learning rate about ten times that of full fine-tuning. Inference costs nothing extra: A and B are merged
    into W. Start with attn.q and attn.v; adapting all matrices changes the model more. Suits tasks close to the original one; other tasks
    need full fine-tuning.
    """

    kind: Literal["lora"] = "lora"
    rank: int = Field(8, ge=1, le=65536, description="rows of A and columns of B")
    alpha: float = Field(16.0, gt=0, description="scale: B A x is multiplied by alpha / rank")
    target_modules: tuple[TargetModule, ...] = Field(
        ("attn.q", "attn.v"),
        strict=False,
        description="adapted linear layers of each block: q, k, v and o of attn and cross; up, down and, if gated, gate of ff",
    )
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.0, description="dropout on the input of A")

    @model_validator(mode="after")
    def _something_learns(self) -> Self:
        if not self.target_modules:
            raise ValueError(
                "expected at least one linear layer in target_modules, found none; give some, as in target_modules = ['attn.q', 'attn.v']"
            )
        return self
