"""Initial weights."""

from torch import nn

from transom.config.model import Seq2Seq


def initialise(model: nn.Module, config: Seq2Seq) -> None:
    """Draw all weights from the default generator.

    Linear maps: Xavier uniform (Glorot & Bengio 2010), biases zero. Embeddings: normal with deviation d_model^-0.5 where they are
    scaled by sqrt(d_model) or serve as the output map, so that logits and scaled embeddings both start near unit variance.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():  # after the linear maps: a tied output map is an embedding
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.d_model**-0.5)
