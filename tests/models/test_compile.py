"""The compiled model is the eager one."""

from typing import Any, cast

import pytest
import torch

from transom.config.model import Seq2Seq
from transom.data.batch import Sequences, TranslationBatch
from transom.models.build import build_model

TRACER = "ignore:.*torch.autograd.function.Function.* should not be instantiated:DeprecationWarning"
"""PyTorch's tracer makes such an instance for each of our functions with a gradient of its own; nothing of ours does."""

INDUCTOR = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
"""PyTorch's compiler uses it when it is imported; nothing of ours does."""


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("placement", ["post", "pre"])
def test_logits_and_gradients_agree(backend: str, placement: str) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 1, "n_decoder_layers": 1, "dropout": 0.0}
    config = Seq2Seq(**sizes, source_vocab_size=11, target_vocab_size=11, norm_placement=cast(Any, placement))
    model = build_model(config).train()
    source, target = Sequences.pad([[5, 6, 7, 2], [8, 2]]), Sequences.pad([[1, 9], [1, 4]])
    batch = TranslationBatch(source, target, target.tokens, (0, 1))
    results = []
    for forward in (model, torch.compile(model, backend=backend)):
        model.zero_grad()
        logits = forward(batch)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
