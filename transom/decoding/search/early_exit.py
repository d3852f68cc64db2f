"""Early exit: skips the remaining blocks for a token once its prediction is confident (Schuster et al. 2022)."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.data.batch import PaddedSequences
from transom.errors import ConfigError
from transom.layers.cache import DecoderCache
from transom.models.base import LanguageModel
from transom.models.decoder import DecoderOnlyTransformer


@dataclass
class EarlyExitDecoder:
    """Step model with early exit per token. All tokens of a prompt but the last one pass through all blocks.

    Attributes:
        model: a decoder in evaluation mode.
        threshold: minimum difference between the two highest probabilities for an exit (Schuster et al. 2022, section 3.5).
        depth_stats: per step, the number of tokens and the total number of blocks run for them.
    """

    model: DecoderOnlyTransformer
    threshold: float
    depth_stats: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, model: LanguageModel, threshold: float) -> "EarlyExitDecoder":
        """Wrap a model for early exit.

        Raises:
            ConfigError: the model is not a decoder Transformer, or uses mixture-of-depths.
        """
        if not isinstance(model, DecoderOnlyTransformer) or model.decoder.routed:
            raise ConfigError(
                f"decoding.early_exit_threshold = {threshold:g} requires model.kind = 'decoder' with model.depth = 'full', found"
                f" another model, of kind {model.config.kind!r}; set early_exit_threshold to 1"
            )
        return cls(model, threshold)

    def encode(self, prompt: PaddedSequences) -> PaddedSequences:
        """Return the prompts unchanged."""
        return prompt

    def start(self, prompt: PaddedSequences, n_beams: int, max_length: int) -> DecoderCache:
        """Return a cache that holds all but the last token of each prompt."""
        return self.model.start(prompt, n_beams, max_length)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, "rows new"], cache: DecoderCache) -> Float[Tensor, "rows new vocab"]:
        """Return the logits of the token after each of ``tokens``, from the first block whose logits are confident."""
        logits, blocks = self.model.early_exit_step(tokens, cache, self.is_confident)
        self.depth_stats.append((blocks.numel(), int(blocks.sum())))
        return logits

    def is_confident(self, logits: Float[Tensor, "rows new vocab"]) -> Bool[Tensor, "rows new"]:
        """Return whether the two highest probabilities differ by at least the threshold."""
        best = logits.float().softmax(-1).topk(min(2, logits.shape[-1]), -1).values
        return best[..., 0] - best[..., 1:].sum(-1) >= self.threshold

    @property
    def mean_exit_depth(self) -> float:
        """Mean number of blocks run per token."""
        tokens, blocks = (sum(each) for each in zip(*self.depth_stats, strict=True)) if self.depth_stats else (1, 0)
        return blocks / tokens
