"""Learning to answer early: a loss behind every block, through the one output map."""

from jaxtyping import Float
from torch import Tensor

from transom.config.training import NoExits, Training
from transom.data.batch import Batch
from transom.layers.tap import Kept, Scope
from transom.models.decoder import DecoderTransformer
from transom.models.network import Network
from transom.training.loss import linear_cross_entropy


class Exits:
    """The places at which a decoder may stop, in training: loss = sum_n w_n L_n, L_n that of the logits W Norm(x_n) behind block n of N.

    w_n is n / sum_m m (Schuster et al. 2022, section 3.3) or 1 / N (Elbayad et al. 2020, aligned training). Without exits L_N is all.
    """

    def __init__(self, model: Network, training: Training) -> None:
        """Find the blocks of ``model``, if the recipe wants exits."""
        brick = getattr(training, "exits", NoExits())
        self._decoder = model if isinstance(model, DecoderTransformer) and brick.kind != "none" else None
        n_blocks = len(self._decoder.decoder.blocks) if self._decoder is not None else 1
        self.weights = brick.weights(n_blocks)
        self._sites = [f"decoder.blocks.{i}.resid_post" for i in range(n_blocks - 1)]
        self._kept = Kept()

    def taps(self, others: Scope | None) -> Scope | None:
        """Give what the next pass takes as ``taps``, others' taps joined with those of the exits."""
        if self._decoder is None:
            return others
        self._kept = Kept(self._sites, None if others is None else others.taps)
        return Scope(self._kept)

    def loss(self, last: Float[Tensor, ""], batch: Batch, smoothing: float) -> Float[Tensor, ""]:
        """Weigh the loss behind the last block and those behind the others, of the pass that has just read ``batch``."""
        if self._decoder is None:
            return last
        total, weight = self.weights[-1] * last, self._decoder.unembedding.weight
        for share, site in zip(self.weights[:-1], self._sites, strict=True):
            hidden = self._decoder.decoder.ended(self._kept.at[site][-1])
            total = total + share * linear_cross_entropy(hidden[batch.counted], weight, batch.labels[batch.counted], smoothing)[0]
        return total
