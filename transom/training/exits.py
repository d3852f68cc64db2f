"""Learning to answer early: a loss behind every block, through the one output map."""

from jaxtyping import Float
from torch import Tensor

from transom.config.training import LanguageTraining, NoExits, Training
from transom.data.batch import Batch
from transom.layers.context import StackContext
from transom.layers.observe import ActivationRecorder
from transom.models.decoder import DecoderTransformer
from transom.models.network import Network
from transom.training.loss import linear_cross_entropy


class Exits:
    """The places at which a decoder may stop, in training: loss = sum_n w_n L_n, L_n that of the logits W Norm(x_n) behind block n of N.

    w_n is n / sum_m m (Schuster et al. 2022, section 3.3) or 1 / N (Elbayad et al. 2020, aligned training). Without exits L_N is all.
    """

    def __init__(self, model: Network, training: Training) -> None:
        """Find the blocks of ``model``, if the recipe wants exits."""
        brick = training.exits if isinstance(training, LanguageTraining) else NoExits()
        self._decoder = model if isinstance(model, DecoderTransformer) and brick.kind != "none" else None
        n_blocks = len(self._decoder.decoder.blocks) if self._decoder is not None else 1
        self.weights = brick.weights(n_blocks)
        self._sites = [f"decoder.blocks.{i}.resid_post" for i in range(n_blocks - 1)]

    @property
    def sites(self) -> list[str]:
        """The sites that ``loss`` reads."""
        return [] if self._decoder is None else self._sites

    def loss(self, last: Float[Tensor, ""], batch: Batch, smoothing: float, recorder: ActivationRecorder) -> Float[Tensor, ""]:
        """Weigh the loss after the last block and those after the others, of the pass in which ``recorder`` observed ``batch``."""
        if self._decoder is None:
            return last
        total, weight = self.weights[-1] * last, self._decoder.unembedding.weight
        for share, site in zip(self.weights[:-1], self._sites, strict=True):
            hidden = self._decoder.decoder.final_norm(recorder.activations[site], StackContext())
            total = total + share * linear_cross_entropy(hidden[batch.counted], weight, batch.labels[batch.counted], smoothing)[0]
        return total
