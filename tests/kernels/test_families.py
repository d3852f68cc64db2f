"""Twenty training steps of each family by the kernels and by their references: the same losses, the same weights."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.test_second_derivatives import IMAGES, TEXTS, described_image, described_text
from tests.models.combinations import batch_for
from tests.models.test_combinations import built
from tests.models.test_vision import batch_of
from tests.tiers import every
from transom.data.batch import ImageBatch
from transom.layers import dispatch
from transom.training.objectives.objective import CrossEntropy, forward_pass

pytestmark = pytest.mark.kernels

STEPS = 20


def trained(config: Any, batch: Any, dtype: torch.dtype) -> list[Tensor]:
    """Train a tiny model; return the losses of all steps and the weights."""
    model = built(config).to(dtype).train()
    if isinstance(batch, ImageBatch):
        batch = replace(batch, pixels=batch.pixels.to(dtype))
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.02, momentum=0.9)
    torch.manual_seed(3)  # the same elements are dropped
    losses = list[Tensor]()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = CrossEntropy(label_smoothing=0.1).loss(forward_pass(model, batch)).backward_loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(p.detach() for p in weights)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "fields", every(4, TEXTS + IMAGES), ids=lambda fields: f"{fields['kind']}-{fields.get('position', fields.get('cell'))}"
)
def test_the_references_train_the_same_model(
    fields: dict[str, Any], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fields in IMAGES
    if fields.get("position") == "relative":  # a learned bias takes PyTorch's fused attention, which draws other weights to drop
        fields = fields | {"attention_dropout": 0.0}
    config: Any = described_image(fields) if images else described_text(fields)
    batch = batch_of(config) if images else batch_for(config)
    by_kernels = trained(config, batch, dtype)
    monkeypatch.setattr(dispatch, "KERNEL_TABLE", defaultdict(list))
    by_references = trained(config, batch, dtype)
    for ours, theirs in zip(by_kernels, by_references, strict=True):
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    assert not torch.equal(by_kernels[0][:1], by_kernels[0][-1:]), "something is learned"
