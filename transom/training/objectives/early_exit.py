"""Early exit: a loss after every block of a decoder, through the one output map."""

from transom.config.training import ExitsBrick, NoExits
from transom.data.batch import Batch
from transom.layers.context import StackContext
from transom.models.decoder import DecoderTransformer
from transom.models.network import Network
from transom.training.loss import linear_cross_entropy
from transom.training.objectives.objective import CrossEntropy, ForwardPass, Objective, SliceLoss


class EarlyExit(Objective):
    """Loss = sum_n w_n L_n, L_n that of the logits W Norm(x_n) after block n of N; the loss of the last block is what is reported.

    w_n is n / sum_m m (Schuster et al. 2022, section 3.3) or 1 / N (Elbayad et al. 2020, aligned training).
    """

    def __init__(self, last: CrossEntropy, model: Network, exits: ExitsBrick) -> None:
        """Weigh the losses after the blocks of ``model``.

        Args:
            last: the objective after the last block.
            model: a decoder.
            exits: how the blocks are weighed.
        """
        assert isinstance(model, DecoderTransformer), "the recipe's schema refuses exits elsewhere"
        self._last, self._model = last, model
        n_blocks = len(model.decoder.blocks)
        self._weights = exits.weights(n_blocks)
        self.sites = [f"decoder.blocks.{i}.resid_post" for i in range(n_blocks - 1)]
        self.n_readings = last.n_readings

    def prepare(self, batch: Batch) -> Batch:
        """Return what the last block's objective has the model read."""
        return self._last.prepare(batch)

    def loss(self, forward: ForwardPass) -> SliceLoss:
        """Compute the weighted sum of the losses after all blocks."""
        last = self._last.loss(forward)
        total, batch = self._weights[-1] * last.learned, forward.batch
        for share, site in zip(self._weights[:-1], self.sites, strict=True):
            hidden, weight = self._model.head(self._model.decoder.final_norm(forward.activations[site][-1], StackContext()))
            nats = linear_cross_entropy(hidden[batch.counted], weight, batch.labels[batch.counted], self._last.smoothing)
            total = total + share * nats[0]
        return last._replace(learned=total)


def with_exits(last: CrossEntropy, model: Network, exits: ExitsBrick) -> Objective:
    """Return ``last`` with the losses after the other blocks, where the recipe asks for exits."""
    return last if isinstance(exits, NoExits) else EarlyExit(last, model, exits)
