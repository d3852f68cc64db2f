"""Linformer: keys and values projected along the sequence axis to a fixed number of rows (Wang et al. 2020)."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.config import approximations
from transom.config.component_registry import implements
from transom.layers.approximations.approximation import Approximation
from transom.layers.attention import attention_scores, attention_weights, repeat_kv


@implements(approximations.LinformerConfig)
class Linformer(Approximation):
    """Linformer: softmax(Q (E K)^T / sqrt(d_k)) F V (Wang et al. 2020, eq. 7).

    E and F are ``e`` and ``f``, (rank, n_positions), shared by all heads.
    """

    def __init__(self, config: approximations.LinformerConfig, d_head: int, n_positions: int) -> None:
        """Initialize E and F for sequences of at most ``n_positions`` tokens."""
        super().__init__()
        self.e, self.f = (nn.Linear(n_positions, config.rank, bias=False) for _ in range(2))

    def attend(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        key_mask: Bool[Tensor, "#batch key"] | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Project keys and values along the sequence axis to ``rank`` rows, and attend to these rows."""
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask[:, None, :, None], 0.0) for x in (k, v))
        return attention_weights(attention_scores(q, self._columns(self.e, k) @ k)) @ repeat_kv(self._columns(self.f, v) @ v, q.shape[1])

    def unmasked_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return softmax(Q (E K)^T / sqrt(d_k)) F; its rows need not sum to 1."""
        return attention_weights(attention_scores(q, self._columns(self.e, k) @ k)) @ self._columns(self.f, k)

    def _columns(self, mixing: nn.Linear, of: Tensor) -> Tensor:
        """Return the first columns of E or F (``mixing``), one per token of ``of``."""
        return mixing.weight[:, : of.shape[2]].to(of)
