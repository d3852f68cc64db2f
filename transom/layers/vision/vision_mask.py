"""Positions and mask rules of image patches and the class token."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from transom.config.patterns import block_patterns
from transom.config.vision import VisionTransformerConfig
from transom.layers.masks.mask_rules import FULL, MaskRule, TileStatus, TokenPositions, build_rule

PATCH_SEGMENT, CLASS_SEGMENT = 1, 2
"""Segment ids in an image: patches and the class token."""


@dataclass(frozen=True)
class ClassTokenRule(MaskRule):
    """The class token attends to all tokens and all attend to it, as a global token (Beltagy et al. 2020, section 3.1)."""

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        """Test whether query or key is the class token."""
        return (query.segments == CLASS_SEGMENT) | (key.segments == CLASS_SEGMENT)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by whether a query or key tile contains the class token, and whether one of them contains only the class token."""
        q, k = (queries.segments == CLASS_SEGMENT)[:, :, None], (keys.segments == CLASS_SEGMENT)[:, None]
        return TileStatus(q.any(-1) | k.any(-1), q.all(-1) | k.all(-1))


def image_positions(config: VisionTransformerConfig, device: torch.device | None = None) -> TokenPositions:
    """Return the positions of the class token, if any, and of the patches, which are numbered row by row from 0."""
    patches = torch.arange(config.grid**2, device=device)
    token = patches.new_zeros(config.n_positions - len(patches))
    positions = torch.cat([token, patches])[None]
    segments = torch.cat([torch.full_like(token, CLASS_SEGMENT), torch.full_like(patches, PATCH_SEGMENT)])[None]
    return TokenPositions(positions, segments)


def image_mask_rules(config: VisionTransformerConfig) -> list[MaskRule]:
    """Build the mask rules of the stack: each sparsity pattern, combined with global attention of the class token if there is one."""
    rules = [build_rule(pattern, config.grid) for pattern in block_patterns(config.attention.pattern)]
    return [rule if rule == FULL or config.pooling != "cls" else rule | ClassTokenRule() for rule in rules]
