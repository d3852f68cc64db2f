"""The schema of the mixture of experts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transom.config.component_registry import register_component
from transom.config.components import AnyExpert, GatedFeedForwardConfig
from transom.config.schema import ComponentConfig, Slot

AnyLoadBalancing = Annotated[ComponentConfig, Slot("load_balancing")]


@register_component("load_balancing")
class AuxLossBalancingConfig(ComponentConfig):
    """Auxiliary loss, minimal if all experts are selected equally often: aux_loss_coef * N sum_i f_i P_i (Fedus et al. 2022, eq. 4 to 6).

    f_i is the fraction of selections that fall on expert i, one of N, and P_i is its mean router probability. Both are computed over the
    whole batch. A batch computed in parts (``training.grad_accum_steps``, ``[parallel]``) needs an additional forward pass for
    both, which takes a third more time.

    Cost and use: The usual choice. Costs almost no time for batches computed in one part. It competes with the main loss: a large weight
    costs quality.
    """

    kind: Literal["aux-loss"] = "aux-loss"
    aux_loss_coef: float = Field(0.01, gt=0, description="weight of the auxiliary loss, per layer")


@register_component("load_balancing")
class BiasBalancingConfig(ComponentConfig):
    """Auxiliary-loss-free balancing: a bias on the scores that affects selection only, not the weights (Wang et al. 2024, algorithm 1).

    After each step, the bias b_i of expert i increases by ``bias_update_rate`` if the expert was selected less often than the mean, and
    decreases if more often.

    Cost and use: Does not change the loss; the choice for sigmoid scores. Balances more slowly than aux-loss, in steps of
    `bias_update_rate`.
    """

    kind: Literal["bias"] = "bias"
    bias_update_rate: float = Field(0.001, gt=0, description="change of each bias per step")


@register_component("load_balancing")
class NoBalancingConfig(ComponentConfig):
    """No load balancing: usually a few experts receive all tokens.

    Cost and use: Free; for experiments.
    """

    kind: Literal["none"] = "none"


@register_component("feed_forward")
class MoeConfig(ComponentConfig):
    """Mixture of experts: sum_{i in TopK(s)} g_i E_i(x), s = softmax(x W_r), each E_i a network (Shazeer et al. 2017, eq. 1 and 3).

    g is s divided by the sum of the selected scores (Jiang et al. 2024, section 2.1), or s itself (Fedus et al. 2022, eq. 2). Shared
    experts process every token with weight 1 (Dai et al. 2024, eq. 9). Selection adds no noise.

    Cost and use: n_experts times the parameters for top_k times the time: more capacity at equal FLOPs per token, if memory allows.
    load_balancing = aux-loss is common; bias does not change the loss and suits sigmoid scores. With a capacity factor, training drops
    tokens, and the output of a row depends on earlier rows of the batch; without it, rows are independent. z_loss_coef keeps the router's
    logits small, which matters in bfloat16.
    """

    kind: Literal["moe"] = "moe"
    expert: AnyExpert = Field(GatedFeedForwardConfig(), description="the network of each expert")
    n_experts: int = Field(8, ge=2, le=4096, description="number of routed experts")
    top_k: int = Field(2, ge=1, description="routed experts per token")
    n_shared_experts: int = Field(
        0, ge=0, le=4096, description="experts that process every token, computed as one network of n_shared_experts times the width"
    )
    d_expert: int | None = Field(None, ge=1, description="hidden dimension of an expert; default d_ff")
    scoring_func: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="function from router logits to scores; sigmoid scores each expert independently (DeepSeek-V3)"
    )
    norm_topk_prob: bool = Field(True, description="divide the selected scores by their sum; must be false if top_k = 1")
    load_balancing: AnyLoadBalancing = Field(AuxLossBalancingConfig(), description="load balancing of the experts")
    z_loss_coef: float = Field(
        0.001,
        ge=0,
        description="weight of the router z-loss per layer, the mean of (log sum exp of the router's logits)^2 (Zoph et al. 2022, eq. 5)",
    )
    capacity_factor: float | None = Field(
        None,
        gt=0,
        description="maximum tokens per expert in training, as a multiple of the mean; further tokens are dropped in batch order"
        " (Fedus et al. 2022, eq. 3); default: no limit; inference never drops tokens",
    )

    @model_validator(mode="after")
    def _choices_fit(self) -> "MoeConfig":
        if self.top_k > self.n_experts:
            raise ValueError(f"expected top_k of at most n_experts = {self.n_experts}, found {self.top_k}; change one of them")
        if self.norm_topk_prob and self.top_k == 1:
            raise ValueError(
                "top_k = 1 requires norm_topk_prob = false: otherwise all weights are 1 and the router gets no gradient; set it to false"
            )
        return self

    def width(self, d_ff: int) -> int:
        """Return the hidden dimension of an expert: ``d_expert`` or, if that is not set, ``d_ff``."""
        return self.d_expert or d_ff
