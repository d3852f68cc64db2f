"""From texts to vectors."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.config.decoding import Reading
from transom.decoding.inference import evaluating
from transom.errors import DataError
from transom.inputs.labelled import text_batches
from transom.inputs.tokenizer import Tokenizer
from transom.models.encoder import EncoderTransformer, mean_pooled
from transom.planning.precision import Precision


class Embedder:
    """Gives texts vectors.

    Attributes:
        model: an encoder of any kind, ready to answer.
        tokenizer: of its texts.
        precision: how the type of its matrix products was chosen; None where it was not.
    """

    def __init__(
        self, model: EncoderTransformer, tokenizer: Tokenizer, reading: Reading | None = None, precision: Precision | None = None
    ) -> None:
        """Answer with a model; ``reading`` is the recipe's."""
        self.model, self.tokenizer, self.precision = model, tokenizer, precision
        self.reading = reading or Reading()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], normalise: bool = True) -> Float[Tensor, "texts d_model"]:
        """Give each text a vector: the mean of its tokens' last vectors (Reimers & Gurevych 2019, section 3).

        Args:
            texts: any number; the beginning of one that is longer than the model reads stands for it.
            normalise: make every vector of length 1, so that products of two are cosines.
        """
        if isinstance(texts, str):
            raise DataError(f"expected a list of texts, found one text: [{texts[:40]!r}]")
        model, rows = self.model, self.tokenizer.encode_batch(list(texts))
        result, device = torch.empty(len(rows), model.config.d_model), model.embedding.tokens.weight.device
        with evaluating(model):
            for batch in text_batches(rows, [0] * len(rows), model.config.max_seq_len, self.reading.batch_tokens):
                source = batch.source.to(device)
                result[list(batch.samples)] = mean_pooled(model.encode(source), source).to(result)
        return F.normalize(result, dim=-1) if normalise else result
