"""Self-attention for models outside the package: causality, padding, positions and refusals."""

import pytest
import torch

from transom.errors import ConfigError, TransomError
from transom.layers.self_attention import SelfAttention


@pytest.mark.parametrize("causal", [True, False])
def test_a_token_depends_on_what_it_may_see(causal: bool) -> None:
    torch.manual_seed(0)
    layer, x = SelfAttention(16, 4, 2, causal=causal).eval(), torch.randn(2, 6, 16)
    changed = x.clone()
    changed[:, 4] += 1
    difference = (layer(changed) - layer(x)).abs().amax((0, 2))
    assert (difference[4:] > 1e-4).all() and ((difference[:4] == 0).all() if causal else (difference[:4] > 1e-4).all())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_padding_on_either_side_changes_nothing(left: bool, causal: bool) -> None:
    torch.manual_seed(0)
    layer, x = SelfAttention(16, 4, 2, causal=causal).eval(), torch.randn(1, 5, 16)
    padding, ones, zeros = torch.randn(1, 3, 16), torch.ones(1, 5), torch.zeros(1, 3)
    rows, masks = ([padding, x], [zeros, ones]) if left else ([x, padding], [ones, zeros])
    padded = layer(torch.cat(rows, 1), torch.cat(masks, 1))
    assert padded.isfinite().all()
    assert torch.allclose(padded[:, 3:] if left else padded[:, :5], layer(x), atol=1e-6)


def test_order_matters_through_rotary_positions() -> None:
    torch.manual_seed(0)
    layer, x = SelfAttention(16, 4, causal=False).eval(), torch.randn(1, 5, 16)
    assert not torch.allclose(layer(x.flip(1)).flip(1), layer(x), atol=1e-3)


def test_sizes_and_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_heads 4 is not a multiple of n_kv_heads 3"):
        SelfAttention(16, 4, 3)
    layer = SelfAttention(16, 4, max_seq_len=8)
    with pytest.raises(TransomError, match=r"^x: expected shape \(batch, length up to 8, 16\), found \(1, 9, 16\)$"):
        layer(torch.randn(1, 9, 16))
    with pytest.raises(TransomError, match=r"^attention_mask: expected the shape \(batch, length\) of x, \(1, 8\), found \(1, 7\)$"):
        layer(torch.randn(1, 8, 16), torch.ones(1, 7))
