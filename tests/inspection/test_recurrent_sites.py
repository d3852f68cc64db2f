"""The sites of recurrent networks, those inside of a decoder's loop among them: looking changes nothing, edits change what follows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transom.config.recurrent import RecurrentSeq2SeqConfig
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.inspection.activation_sites import list_sites
from transom.layers.context import LayerContext
from transom.layers.observe import ActivationRecorder, Edit, assign_addresses, observe
from transom.layers.recurrent.recurrent_decoder import unrolled_context
from transom.models.base import Network
from transom.models.build import build_model

ATTENTIONS: list[Any] = ["none", "additive", "luong", {"kind": "luong", "score": "concat", "input_feeding": False}]
TARGET = PaddedSequences.pad([[1, 4, 8], [1, 6]])
BATCH = TranslationBatch(PaddedSequences.pad([[5, 3, 9, 2], [7, 2]]), TARGET, TARGET.tokens, (0, 1))


def config(attention: Any) -> RecurrentSeq2SeqConfig:
    sizes = {"d_model": 8, "n_encoder_layers": 2, "n_decoder_layers": 2, "source_vocab_size": 11, "target_vocab_size": 11}
    return RecurrentSeq2SeqConfig.model_validate(sizes | {"attention": attention, "dropout": 0.3})


def tiny(attention: Any) -> Network:
    torch.manual_seed(1)
    return build_model(config(attention)).double().eval()


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_looking_changes_nothing(attention: Any) -> None:
    model, results = tiny(attention).train(), []
    for observer in (None, ActivationRecorder(["*"])):
        torch.manual_seed(7)
        model.zero_grad()
        logits = model(BATCH, observer)
        logits.square().sum().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.allclose(unseen, seen, rtol=0, atol=1e-12) for unseen, seen in zip(*results, strict=True))


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_an_edit_changes_what_follows_and_only_that(attention: Any) -> None:
    model, plain = tiny(attention), ActivationRecorder(["*"])
    plain_logits = model(BATCH, plain)
    assert list(plain.activations) == [site.address for site in list_sites(config(attention))]
    for address, x in plain.activations.items():
        value = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3)).requires_grad_()
        edited = ActivationRecorder(["*"], {address: Edit(value)})
        logits = model(BATCH, edited)
        assert torch.equal(edited.activations[address], value)
        for other, found in edited.activations.items():
            if not _depends(found, value):
                assert torch.equal(found, plain.activations[other])
        assert _depends(logits, value) and not torch.equal(logits, plain_logits)


def _depends(x: Tensor, value: Tensor) -> bool:
    return torch.autograd.grad(x.sum() * 1.0, value, retain_graph=True, allow_unused=True)[0] is not None


@pytest.mark.parametrize("attention", ["additive", "luong"])
def test_an_edit_at_one_place_of_a_loop_leaves_those_before_it(attention: str) -> None:
    model, plain = tiny(attention), ActivationRecorder(["decoder.cross.z"])
    before = model(BATCH, plain)
    here = torch.tensor([False, True, False])[:, None]
    after = model(BATCH, ActivationRecorder([], {"decoder.cross.z": Edit(torch.ones(()), here)}))
    changed = (before != after).any(-1)
    assert changed.tolist() == [[False, True, True], [False, True, True]]


def test_a_site_in_a_loop_has_one_tensor_for_all_places() -> None:
    recorder = ActivationRecorder(["x"], {"x": Edit(torch.tensor(5.0), torch.tensor([[False], [True], [False]]))})
    ctx, module = unrolled_context(LayerContext(observer=recorder.start_pass("decoder")), 3), nn.Identity()
    assign_addresses(module)
    seen = [observe(ctx, module, "x", torch.full((1, 2), float(i))) for i in range(3)]
    assert recorder.activations["x"].tolist() == [[0.0, 0.0], [5.0, 5.0], [2.0, 2.0]]
    assert torch.equal(torch.cat(seen), recorder.activations["x"])
    assert unrolled_context(LayerContext(), 2).observer is None
