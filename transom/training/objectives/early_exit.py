"""Early exit: a loss after every block of a decoder, through the shared output projection."""

from transom.config.training import EarlyExitConfig, NoEarlyExitConfig
from transom.data.batch import Batch
from transom.layers.context import StackContext
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.training.losses import linear_cross_entropy
from transom.training.objectives.objective import CrossEntropy, ForwardPass, MicroBatchLoss, Objective


class EarlyExitLoss(Objective):
    """Loss = sum_n w_n L_n, where L_n is the loss of the logits W Norm(x_n) after block n of N.

    The weight w_n is n / sum_m m (Schuster et al. 2022, section 3.3) or 1 / N (Elbayad et al. 2020, aligned training). Only the loss after
    the last block is logged.
    """

    def __init__(self, final_objective: CrossEntropy, model: Network, exits: EarlyExitConfig) -> None:
        """Set the weights w_n for the number of blocks in ``model``.

        Args:
            final_objective: objective that computes the loss after the last block.
            model: a ``DecoderOnlyTransformer``.
            exits: setting that chooses the weights w_n.
        """
        assert isinstance(model, DecoderOnlyTransformer), "the recipe's schema allows early exit in decoders only"
        self._final_objective, self._model = final_objective, model
        n_blocks = len(model.decoder.blocks)
        self._weights = exits.weights(n_blocks)
        self.sites = [f"decoder.blocks.{i}.resid_post" for i in range(n_blocks - 1)]
        self.n_copies = final_objective.n_copies

    def prepare(self, batch: Batch) -> Batch:
        """Prepare a batch as the objective of the last block does."""
        return self._final_objective.prepare(batch)

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the weighted sum of the losses after all blocks."""
        final_objective = self._final_objective.loss(forward)
        normed = (self._model.decoder.final_norm(forward.activations[site][-1], StackContext()) for site in self.sites)
        factors = [self._model.factor_logits(hidden) for hidden in normed]
        labels, *all_hidden = forward.at_labels(forward.batch.labels, *(hidden for hidden, _ in factors))
        total, smoothing = self._weights[-1] * final_objective.backward_loss, self._final_objective.label_smoothing
        for weight_of_exit, hidden, (_, weight) in zip(self._weights[:-1], all_hidden, factors, strict=True):
            exit_loss = linear_cross_entropy(hidden, weight, labels, smoothing, softcap=forward.softcap)
            total = total + weight_of_exit * exit_loss[0]
        return final_objective._replace(backward_loss=total)


def add_early_exit_losses(final_objective: CrossEntropy, model: Network, exits: EarlyExitConfig) -> Objective:
    """Return ``final_objective``, extended by losses after all earlier blocks if the recipe sets ``training.early_exit_loss``."""
    return final_objective if isinstance(exits, NoEarlyExitConfig) else EarlyExitLoss(final_objective, model, exits)
