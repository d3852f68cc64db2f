"""The schemas of approximations of attention: what stands in for the softmax over all pairs of tokens."""

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
    """Attention itself: the softmax of the scores of all pairs (Vaswani et al. 2017, eq. 1).

    Cost and use: Exact, and the fastest up to some thousand tokens; `transom compare-attention` measures from where on not.
    """

    CAUSAL: ClassVar[bool] = True
    kind: Literal["none"] = "none"


@register_component("approximation")
class LinearAttentionConfig(ApproximationConfig):
    """Linear attention (Katharopoulos et al. 2020, eq. 4 and 5): phi(q_i)^T sum_j phi(k_j) v_j^T / phi(q_i)^T sum_j phi(k_j).

    phi is elu(x) + 1 (elu, eq. 7) or max(0, x) (relu), element by element. A decoder's sums run over the tokens before, and are all that
    it remembers of them. Queries and keys are turned by rotary positions before phi.

    Cost and use: n d_k d_v in place of n^2 d, and in decoding a state of one size however long the text. Weights are smooth: it cannot pick
    one token out as a softmax can, so it has to be trained with, and is weaker at recall.
    """

    CAUSAL: ClassVar[bool] = True
    kind: Literal["linear"] = "linear"
    feature_map: Literal["elu", "relu"] = Field("elu", description="phi; with relu a query may see nothing")


@register_component("approximation")
class PerformerConfig(ApproximationConfig):
    """Linear attention that estimates the softmax: positive orthogonal random features, FAVOR+ (Choromanski et al. 2021, lemma 1).

    phi(x) = exp(w_r . x - |x|^2 / 2) / sqrt(n_features), x a query or key over d_k^(1/4): the mean of phi(q) . phi(k) over draws is
    exp(q . k / sqrt(d_k)). The w_r are drawn once, are not learned, and are saved with the weights; the paper redraws them sometimes.
    For float32's sake the exponent of a key is kept between -60 and 60.

    Cost and use: n n_features d_v: pays above about n_features tokens. The error falls like 1 / sqrt(n_features) and grows fast with the
    length of queries and keys, which qk_norm keeps in bounds.
    """

    CAUSAL: ClassVar[bool] = True
    kind: Literal["performer"] = "performer"
    n_features: int = Field(
        128, ge=1, le=65536, description="m, random features a head; the paper has d_k ln d_k or more, 256 in most tests"
    )
    orthogonal: bool = Field(True, description="draw the w_r at right angles to each other, d_k at a time: less error at equal m")


@register_component("approximation")
class LinformerConfig(ApproximationConfig):
    """Keys and values of all positions projected to a few (Wang et al. 2020, eq. 7): softmax(Q (E K)^T / sqrt(d_k)) F V.

    E and F are learned, of size ``rank`` times max_seq_len, one of each per layer for all heads (headwise sharing, section 4). Padding
    contributes nothing.

    Cost and use: n rank pairs, 2 rank max_seq_len weights per layer; for encoders of one usual length. Needs training.
    """

    kind: Literal["linformer"] = "linformer"
    rank: int = Field(64, ge=1, le=65536, description="k, mixed keys and values; the paper has 128 to 256 for 512 tokens")


@register_component("approximation")
class NystromConfig(ApproximationConfig):
    """Nystrom's method (Xiong et al. 2021, eq. 13 and 14): softmax(Q K'^T) softmax(Q' K'^T)^+ softmax(Q' K^T) V, all over sqrt(d_k).

    The landmarks Q' and K' are means of runs of queries and of keys, the pseudo-inverse is iterated. The paper's convolution of V beside it
    is left out.

    Cost and use: 2 n n_landmarks pairs and nothing to learn: of the approximations the nearest to a model trained without one.
    """

    kind: Literal["nystrom"] = "nystrom"
    n_landmarks: int = Field(64, ge=1, le=4096, description="m, means of queries and of keys; a text of no more tokens has one each")
    n_iterations: int = Field(6, ge=1, le=100, description="of the pseudo-inverse")
