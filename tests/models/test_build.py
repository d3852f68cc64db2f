"""Initial weights have the documented standard deviations; a model built for loading draws no random numbers and is otherwise equal."""

import math

import pytest
import torch

from transom.config.model import Seq2SeqConfig
from transom.data.batch import PaddedSequences
from transom.models.build import build_model, build_uninitialized
from transom.models.seq2seq import Seq2SeqTransformer

CONFIG = Seq2SeqConfig(
    d_model=128, n_heads=4, d_ff=384, n_encoder_layers=1, n_decoder_layers=1, max_seq_len=16, source_vocab_size=300, target_vocab_size=300
)


def xavier(inputs: int, outputs: int) -> float:
    return math.sqrt(2 / (inputs + outputs))


def test_fresh_weights_have_their_spread() -> None:
    torch.manual_seed(1)
    model = build_model(CONFIG)
    assert isinstance(model, Seq2SeqTransformer)
    expected = {"q": xavier(128, 128) * math.sqrt(0.5), "o": xavier(128, 128), "up": xavier(128, 384), "down": xavier(384, 128)}
    expected |= {"k": expected["q"], "v": expected["q"], "tokens": 128**-0.5}
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert not p.any()
        elif ".norm." in name:
            assert (p == 1).all()
        else:
            assert p.std().item() == pytest.approx(expected[name.split(".")[-2]], rel=0.03), name


def test_an_empty_model_draws_nothing_and_has_the_same_parts() -> None:
    torch.manual_seed(1)
    fresh, before = build_model(CONFIG), torch.get_rng_state()
    empty = build_uninitialized(CONFIG)
    assert torch.equal(torch.get_rng_state(), before)
    shapes = [
        {name: (x.shape, x.dtype, x.requires_grad) for name, x in model.state_dict(keep_vars=True).items()} for model in (fresh, empty)
    ]
    assert shapes[0] == shapes[1]
    empty.load_state_dict(fresh.state_dict())
    for (name, a), (_, b) in zip(fresh.named_buffers(), empty.named_buffers(), strict=True):
        assert torch.equal(a, b), name


def test_shapes_are_checked_in_rooms_that_compute() -> None:
    rows = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(TypeError):
        PaddedSequences(rows, rows, rows, rows)
