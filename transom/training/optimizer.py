"""The optimizer of a recipe, over a model's parameters."""

import torch
from torch import nn

from transom.config.training import Adam, AdamW, Sgd


def build_optimizer(model: nn.Module, brick: Sgd | Adam | AdamW) -> torch.optim.Optimizer:
    """Build the optimizer in PyTorch's fused form.

    AdamW decays weight matrices only: never vectors (biases, gains) nor embeddings, tied output map included.
    The learning rate is set before each step by the schedule; it starts at 0.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if isinstance(brick, Sgd):
        return torch.optim.SGD(parameters, lr=0.0, momentum=brick.momentum, weight_decay=brick.weight_decay, fused=True)
    betas = (brick.beta1, brick.beta2)
    if not isinstance(brick, AdamW):
        return torch.optim.Adam(parameters, lr=0.0, betas=betas, eps=brick.eps, fused=True)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decayed = [p for p in parameters if p.ndim > 1 and id(p) not in embeddings]
    others = [p for p in parameters if p.ndim < 2 or id(p) in embeddings]
    groups = [{"params": decayed, "weight_decay": brick.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=brick.eps, fused=True)
