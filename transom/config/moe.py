"""The schema of the mixture of experts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transom.config.component_registry import register_component
from transom.config.components import AnyExpert, GatedFeedForwardConfig
from transom.config.schema import ComponentConfig, Slot

AnyLoadBalancing = Annotated[ComponentConfig, Slot("load_balancing")]


@register_component("load_balancing")
class AuxLossBalancingConfig(ComponentConfig):
    """A loss that is least where all experts are chosen equally often: aux_loss_coef * N sum_i f_i P_i (Fedus et al. 2022, eq. 4 to 6).

    f_i is the share of all choices that fall on expert i of N, P_i the mean of its share of a token's scores. Both are the whole batch's:
    one that is computed in pieces (``training.grad_accum_steps``, ``training.processes``) is read once more for them, a third more time.

    Cost and use: The usual one. Next to no time but in slices or processes, and a second aim beside the loss: a weight too large costs
    quality.
    """

    kind: Literal["aux-loss"] = "aux-loss"
    aux_loss_coef: float = Field(0.01, gt=0, description="of the loss, once a layer")


@register_component("load_balancing")
class BiasBalancingConfig(ComponentConfig):
    """A bias on the scores that decides the choice only, never a weight, and needs no loss (Wang et al. 2024, algorithm 1).

    After each step b_i rises by ``bias_update_rate`` where expert i was chosen less often than the mean, and falls where more often.

    Cost and use: Leaves the loss alone; the one for sigmoid scores. Slower to even out, as each step moves a bias by `bias_update_rate`.
    """

    kind: Literal["bias"] = "bias"
    bias_update_rate: float = Field(0.001, gt=0, description="how far each bias moves a step")


@register_component("load_balancing")
class NoBalancingConfig(ComponentConfig):
    """Experts are left to themselves; most often a few take all tokens.

    Cost and use: Free; for experiments.
    """

    kind: Literal["none"] = "none"


@register_component("feed_forward")
class MoeConfig(ComponentConfig):
    """Mixture of experts: sum_{i in TopK(s)} g_i E_i(x), s = softmax(x W_r), each E_i a network (Shazeer et al. 2017, eq. 1 and 3).

    g is s over the sum of the chosen ones (Jiang et al. 2024, section 2.1), or s itself (Fedus et al. 2022, eq. 2). Shared experts take
    every token, with weight 1 (Dai et al. 2024, eq. 9). No noise is added to the choice.

    Cost and use: n_experts times the parameters for top_k times the time: more knowledge for the same arithmetic a token, where memory is
    there. load_balancing = aux-loss is common; bias does not change the loss and suits sigmoid scores. With a capacity, training drops
    tokens, and what a row gives depends on the rows above it; without, rows never meet. z_loss_coef keeps the router's logits small, which
    matters in short types.
    """

    kind: Literal["moe"] = "moe"
    expert: AnyExpert = Field(GatedFeedForwardConfig(), description="the network that each expert is")
    n_experts: int = Field(8, ge=2, le=4096, description="experts that a token may be sent to")
    top_k: int = Field(2, ge=1, description="experts that each token is sent to")
    n_shared_experts: int = Field(
        0, ge=0, le=4096, description="experts that take every token: one network of n_shared_experts times the width"
    )
    d_expert: int | None = Field(None, ge=1, description="hidden width of an expert; default d_ff")
    scoring_func: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="what makes scores of the router's logits; sigmoid judges each expert alone (DeepSeek-V3)"
    )
    norm_topk_prob: bool = Field(True, description="divide the chosen scores by their sum; with top_k = 1 the router would learn nothing")
    load_balancing: AnyLoadBalancing = Field(AuxLossBalancingConfig(), description="what keeps the experts equally busy")
    z_loss_coef: float = Field(
        0.001,
        ge=0,
        description="of the mean of (log sum exp of the router's logits)^2 a layer, which bounds them (Zoph et al. 2022, eq. 5)",
    )
    capacity_factor: float | None = Field(
        None,
        gt=0,
        description="in training an expert takes this times the mean number of tokens, in the order of rows, and drops the others"
        " (Fedus et al. 2022, eq. 3); none drops nothing, and answering never does",
    )

    @model_validator(mode="after")
    def _choices_fit(self) -> "MoeConfig":
        if self.top_k > self.n_experts:
            raise ValueError(f"expected top_k of at most n_experts = {self.n_experts}, found {self.top_k}; change one of them")
        if self.norm_topk_prob and self.top_k == 1:
            raise ValueError("top_k = 1 needs norm_topk_prob = false, or all weights are 1 and the router learns nothing; set it")
        return self

    def width(self, d_ff: int) -> int:
        """Return an expert's hidden width."""
        return self.d_expert or d_ff
