"""Early exit: a decoder that stops at the first block behind which it is sure of the next token."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.data.batch import Sequences
from transom.errors import ConfigError
from transom.layers.cache import DecoderCache
from transom.models.decoder import DecoderTransformer
from transom.models.network import LanguageNetwork


@dataclass
class EarlyExits:
    """A model to search with whose tokens stop early; a prompt but for its last token passes all blocks.

    Attributes:
        model: in evaluation mode.
        threshold: how sure it must be: the likeliest token's probability less the next one's (Schuster et al. 2022, section 3.5).
        passed: of each step, its tokens and the blocks that they passed, added up.
    """

    model: DecoderTransformer
    threshold: float
    passed: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, model: LanguageNetwork, threshold: float) -> "EarlyExits":
        """Let a model's tokens stop early.

        Raises:
            ConfigError: it has no blocks, or some that only chosen tokens pass.
        """
        if not isinstance(model, DecoderTransformer) or model.decoder.routed:
            raise ConfigError(
                f"decoding.exit_threshold = {threshold:g} needs model.kind = 'decoder' with model.depth = 'full', found"
                f" {model.config.kind!r} or routed blocks; set it to 1"
            )
        return cls(model, threshold)

    def encode(self, prompt: Sequences) -> Sequences:
        """Take the prompts as they are."""
        return prompt

    def start(self, prompt: Sequences, n_beams: int, max_length: int) -> DecoderCache:
        """Read all but the last token of each prompt."""
        return self.model.start(prompt, n_beams, max_length)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new vocab"]:
        """Read the rows' next tokens; return the logits of what follows each, as soon as they are sure."""
        logits, blocks = self.model.step_until(tokens, cache, self.sure)
        self.passed.append((blocks.numel(), int(blocks.sum())))
        return logits

    def sure(self, logits: Float[Tensor, "rows new vocab"]) -> Bool[Tensor, "rows new"]:
        """Tell whether the two likeliest tokens are far enough apart."""
        best = logits.float().softmax(-1).topk(min(2, logits.shape[-1]), -1).values
        return best[..., 0] - best[..., 1:].sum(-1) >= self.threshold

    @property
    def mean_exit(self) -> float:
        """Blocks that a token passed, on average."""
        tokens, blocks = (sum(each) for each in zip(*self.passed, strict=True)) if self.passed else (1, 0)
        return blocks / tokens
