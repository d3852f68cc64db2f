"""Positions and mask rules of image patches and the class token."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from transom.config.patterns import patterns_of
from transom.config.vision import VisionTransformer
from transom.layers.masks.rule import EVERYWHERE, Places, Rule, Verdict, rule_of

PATCH, CLASS = 1, 2
"""Segment ids in an image: patches and the class token."""


@dataclass(frozen=True)
class WithClass(Rule):
    """The class token attends to all tokens and all attend to it, as a global token (Beltagy et al. 2020, section 3.1)."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Test whether query or key is the class token."""
        return (query.segments == CLASS) | (key.segments == CLASS)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Test whether either tile has the class token, and whether it has only that."""
        q, k = (queries.segments == CLASS)[:, :, None], (keys.segments == CLASS)[:, None]
        return Verdict(q.any(-1) | k.any(-1), q.all(-1) | k.all(-1))


def image_places(config: VisionTransformer, device: torch.device | None = None) -> Places:
    """Return the positions of the patches, row by row from 0; the class token, if any, precedes them."""
    patches = torch.arange(config.grid**2, device=device)
    token = patches.new_zeros(config.n_positions - len(patches))
    positions = torch.cat([token, patches])[None]
    segments = torch.cat([torch.full_like(token, CLASS), torch.full_like(patches, PATCH)])[None]
    return Places(positions, segments)


def image_rules(config: VisionTransformer) -> list[Rule]:
    """Build the mask rules of the stack: the sparsity pattern, and global attention of the class token if there is one."""
    rules = [rule_of(pattern, config.grid) for pattern in patterns_of(config.attention.pattern)]
    return [rule if rule == EVERYWHERE or config.pool != "cls" else rule | WithClass() for rule in rules]
