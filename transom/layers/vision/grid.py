"""Images as sequences with rules: where patches stand, and what they and the classification token see."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from transom.config.patterns import patterns_of
from transom.config.vision import VisionTransformer
from transom.layers.masks.rule import EVERYWHERE, Places, Rule, Verdict, rule_of

PATCH, CLASS = 1, 2
"""Segments of an image: its patches, and the classification token."""


@dataclass(frozen=True)
class WithClass(Rule):
    """The classification token sees all and all see it, as global tokens do (Beltagy et al. 2020, section 3.1)."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Look for it on both sides."""
        return (query.segments == CLASS) | (key.segments == CLASS)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Look for it in both tiles."""
        q, k = (queries.segments == CLASS)[:, :, None], (keys.segments == CLASS)[:, None]
        return Verdict(q.any(-1) | k.any(-1), q.all(-1) | k.all(-1))


def image_places(config: VisionTransformer, device: torch.device | None = None) -> Places:
    """Number the patches row by row from 0; the classification token stands in front, outside of the grid."""
    patches = torch.arange(config.grid**2, device=device)
    token = patches.new_zeros(config.n_positions - len(patches))
    positions = torch.cat([token, patches])[None]
    segments = torch.cat([torch.full_like(token, CLASS), torch.full_like(patches, PATCH)])[None]
    return Places(positions, segments)


def image_rules(config: VisionTransformer) -> list[Rule]:
    """Build the rules that the blocks have in turn: what the pattern allows, and the classification token, where there is one."""
    rules = [rule_of(pattern, config.grid) for pattern in patterns_of(config.attention.pattern)]
    return [rule if rule == EVERYWHERE or config.pool != "cls" else rule | WithClass() for rule in rules]
