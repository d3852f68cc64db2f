"""Conversion of weights between torch.nn.Transformer and our encoder-decoder."""

import pytest
import torch
from torch import nn

from tests.agreement.torch_transformer import from_torch, to_torch
from tests.models.tiny import seq2seq
from transom.errors import CheckpointError
from transom.layers.context import AttentionContext, StackContext
from transom.models.build import build_model


def torch_transformer(norm_first: bool, bias: bool = True) -> nn.Transformer:
    def norm() -> nn.LayerNorm | None:
        return nn.LayerNorm(8) if norm_first else None

    torch.manual_seed(1)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 12, norm_first=norm_first, batch_first=True, bias=bias), 2, norm(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, norm_first=norm_first, batch_first=True, bias=bias), 3, norm())
    model = nn.Transformer(8, 2, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model.double().eval()


def ours(norm_placement: str) -> nn.Module:
    return build_model(seq2seq(n_encoder_layers=2, n_decoder_layers=3, norm_placement=norm_placement)).double().eval()


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_the_stacks_compute_the_same(norm_placement):
    reference, model = torch_transformer(norm_placement == "pre"), ours(norm_placement)
    missing, unexpected = model.load_state_dict(from_torch(reference.state_dict()), strict=False)
    assert not unexpected
    assert all("embedding" in name for name in missing)
    source, target = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = reference(source, target, tgt_mask=~causal)
    found = model.decoder(target, StackContext(attention_contexts=[AttentionContext(mask=causal[None, None])]), model.encoder(source))
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm_first", [True, False])
def test_there_and_back_is_exact(norm_first):
    state = torch_transformer(norm_first).state_dict()
    back = to_torch(from_torch(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_back_leaves_out_what_pytorch_has_not():
    model, reference = ours("pre"), torch_transformer(True)
    reference.load_state_dict(to_torch(model.state_dict()))
    assert torch.equal(reference.encoder.layers[1].linear1.weight, model.encoder.blocks[1].ff.up.weight)


def test_modules_without_biases():
    state = {name: tensor for name, tensor in torch_transformer(True, bias=False).state_dict().items() if "proj" in name}
    assert to_torch(from_torch(state)).keys() == state.keys()


def test_a_foreign_tensor_is_named():
    with pytest.raises(CheckpointError, match=r"found 'transformer\.h\.0"):
        from_torch({"transformer.h.0.attn.c_attn.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="multihead_attn"):
        from_torch({"encoder.layers.0.multihead_attn.in_proj_weight": torch.zeros(3, 1)})


def test_heads_that_pytorch_cannot_hold_are_refused():
    config = seq2seq(d_head=3, d_value=5)
    with pytest.raises(CheckpointError, match="d_model columns each"):
        to_torch(build_model(config).state_dict())


@pytest.mark.parametrize(
    "components",
    [
        {"norm_placement": "sandwich"},
        {"norm_placement": "parallel"},
        {"norm": "rmsnorm"},
        {"norm": "dyt"},
        {"feed_forward": "swiglu"},
        {"attention": {"sinks": True}},
        {"attention": {"qk_norm": "rmsnorm"}},
        {"n_kv_heads": 1},
    ],
    ids=str,
)
def test_what_pytorch_has_not_is_refused(components):
    with pytest.raises(CheckpointError, match=r"torch\.nn\.Transformer"):
        to_torch(build_model(seq2seq(**components)).state_dict())
