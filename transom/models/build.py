"""From a configuration to a model: the only table of families."""

from torch import nn

from transom.config.model import Model
from transom.models.initialise import initialise
from transom.models.seq2seq import Seq2SeqTransformer

FAMILIES = {"seq2seq": Seq2SeqTransformer}


def build_model(config: Model) -> nn.Module:
    """Build the family that ``config.kind`` names, with fresh weights from the default generator."""
    model = FAMILIES[config.kind](config)
    initialise(model, config)
    return model
