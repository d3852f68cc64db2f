"""Schemas of approximations of softmax attention."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Slot


class ApproximationConfig(ComponentConfig):
    """Base schema of approximations of attention."""

    CAUSAL: ClassVar[bool] = False
    """Whether the approximation can be causal, as decoders need."""


AnyApproximation = Annotated[ApproximationConfig, Slot("approximation", ApproximationConfig)]


@register_component("approximation")
class NoApproximationConfig(ApproximationConfig):
    """Exact attention: the softmax over the scores of all pairs (Vaswani et al. 2017, eq. 1).

    Cost and use: Exact, and fastest up to a few thousand tokens; `transom compare-attention` measures the crossover.
    """

    CAUSAL: ClassVar[bool] = True
    kind: Literal["none"] = "none"


@register_component("approximation")
class LinearAttentionConfig(ApproximationConfig):
    """Linear attention (Katharopoulos et al. 2020, eq. 4 and 5): phi(q_i)^T sum_j phi(k_j) v_j^T / phi(q_i)^T sum_j phi(k_j).

    phi is elu(x) + 1 (elu, eq. 7) or max(0, x) (relu), elementwise. In a decoder the sums run over the tokens so far and are the whole
    decoding state. Rotary positions are applied to queries and keys before phi.

    Cost and use: n d_k d_v multiplications instead of n^2 d, and a decoding state of constant size. The attention weights are smooth and
    cannot single out a token as a softmax can: models must be trained with linear attention, and are weaker at recalling single tokens.
    """

    CAUSAL: ClassVar[bool] = True
    kind: Literal["linear"] = "linear"
    feature_map: Literal["elu", "relu"] = Field("elu", description="phi; with relu a query's weights may all be 0")


@register_component("approximation")
class PerformerConfig(ApproximationConfig):
    """Performer: softmax attention estimated with positive orthogonal random features, FAVOR+ (Choromanski et al. 2021, lemma 1).

    phi(x) = exp(w_r . x - |x|^2 / 2) / sqrt(n_features), where x is a query or key divided by d_k^(1/4). The expectation of phi(q) . phi(k)
    is exp(q . k / sqrt(d_k)). The w_r are sampled once, are not trained and are saved with the weights; the paper resamples them from time
    to time. The exponents of keys are clamped to [-60, 60], the range of float32.

    Cost and use: n n_features d_v multiplications, fewer than exact attention above about n_features tokens. The error falls like 1 /
    sqrt(n_features) and grows fast with the norm of queries and keys, which qk_norm bounds.
    """

    CAUSAL: ClassVar[bool] = True
    kind: Literal["performer"] = "performer"
    n_features: int = Field(
        128, ge=1, le=65536, description="m, random features per head; the paper uses at least d_k ln d_k, 256 in most experiments"
    )
    orthogonal: bool = Field(True, description="sample the w_r orthogonal to each other, d_k at a time, for a smaller error at equal m")


@register_component("approximation")
class LinformerConfig(ApproximationConfig):
    """Linformer: keys and values projected from n to ``rank`` positions (Wang et al. 2020, eq. 7): softmax(Q (E K)^T / sqrt(d_k)) F V.

    E and F are learned, of shape (rank, max_seq_len), one of each per layer for all heads (headwise sharing, section 4). Padding
    contributes nothing.

    Cost and use: n * rank scores, and 2 * rank * max_seq_len weights per layer. For encoders whose inputs have similar lengths; models must
    be trained with it.
    """

    kind: Literal["linformer"] = "linformer"
    rank: int = Field(64, ge=1, le=65536, description="k, number of projected keys and values; the paper uses 128 to 256 for 512 tokens")


@register_component("approximation")
class NystromConfig(ApproximationConfig):
    """Nystromformer (Xiong et al. 2021, eq. 13 and 14): softmax(Q K'^T) softmax(Q' K'^T)^+ softmax(Q' K^T) V, scores over sqrt(d_k).

    The landmarks Q' and K' are means of segments of queries and keys. The pseudo-inverse is computed iteratively. The paper's skip
    connection, a convolution of V, is omitted.

    Cost and use: 2 * n * n_landmarks scores and no parameters. The closest approximation for models trained with exact attention.
    """

    kind: Literal["nystrom"] = "nystrom"
    n_landmarks: int = Field(64, ge=1, le=4096, description="m, number of landmarks; a text of at most m tokens has one landmark per token")
    n_iterations: int = Field(6, ge=1, le=100, description="iterations of the pseudo-inverse")
