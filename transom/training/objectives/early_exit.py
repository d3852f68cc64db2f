"""Early exit: a loss after every block of a decoder, through the shared output projection."""

from transom.config.training import EarlyExitConfig, NoEarlyExitConfig
from transom.data.batch import Batch
from transom.layers.context import StackContext
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.training.losses import linear_cross_entropy
from transom.training.objectives.objective import CrossEntropy, ForwardPass, MicroBatchLoss, Objective


class EarlyExitLoss(Objective):
    """Loss = sum_n w_n L_n, L_n the loss of the logits W Norm(x_n) after block n of N; the last block's loss is logged.

    w_n is n / sum_m m (Schuster et al. 2022, section 3.3) or 1 / N (Elbayad et al. 2020, aligned training).
    """

    def __init__(self, final_objective: CrossEntropy, model: Network, exits: EarlyExitConfig) -> None:
        """Weight the losses after the blocks of ``model``.

        Args:
            final_objective: the objective after the last block.
            model: a decoder.
            exits: weights of the blocks.
        """
        assert isinstance(model, DecoderOnlyTransformer), "the recipe's schema refuses exits elsewhere"
        self._final_objective, self._model = final_objective, model
        n_blocks = len(model.decoder.blocks)
        self._weights = exits.weights(n_blocks)
        self.sites = [f"decoder.blocks.{i}.resid_post" for i in range(n_blocks - 1)]
        self.n_copies = final_objective.n_copies

    def prepare(self, batch: Batch) -> Batch:
        """Prepare a batch as the last block's objective does."""
        return self._final_objective.prepare(batch)

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the weighted sum of the losses after all blocks."""
        final_objective = self._final_objective.loss(forward)
        total, batch = self._weights[-1] * final_objective.backward_loss, forward.batch
        for weight_of_exit, site in zip(self._weights[:-1], self.sites, strict=True):
            hidden, weight = self._model.factor_logits(self._model.decoder.final_norm(forward.activations[site][-1], StackContext()))
            exit_loss = linear_cross_entropy(
                hidden[batch.loss_mask], weight, batch.labels[batch.loss_mask], self._final_objective.label_smoothing
            )
            total = total + weight_of_exit * exit_loss[0]
        return final_objective._replace(backward_loss=total)


def add_early_exit_losses(final_objective: CrossEntropy, model: Network, exits: EarlyExitConfig) -> Objective:
    """Return ``final_objective``, with the losses after all blocks if the recipe sets ``training.early_exit_loss``."""
    return final_objective if isinstance(exits, NoEarlyExitConfig) else EarlyExitLoss(final_objective, model, exits)
