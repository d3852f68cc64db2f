"""From texts to vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.config.decoding import Reading
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.inputs.labelled import text_batches
from transom.inputs.tokenizer import Tokenizer
from transom.models.encoder import EncoderTransformer, mean_pooled
from transom.planning.precision import Precision


@dataclass(frozen=True)
class Embedder:
    """Gives texts vectors.

    Attributes:
        model: an encoder of any kind, ready to answer.
        tokenizer: of its texts.
        reading: the recipe's.
        precision: how the type of its matrix products was chosen; None where it was not.
        reader: what reads in the model's place, faster; None for the model itself.
    """

    model: EncoderTransformer
    tokenizer: Tokenizer
    reading: Reading = field(default_factory=Reading)
    precision: Precision | None = None
    reader: EncoderTransformer | None = None

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], normalise: bool = True, tell: Tell = unheard) -> Float[Tensor, "texts d_model"]:
        """Give each text a vector: the mean of its tokens' last vectors (Reimers & Gurevych 2019, section 3).

        Args:
            texts: any number; the beginning of one that is longer than the model reads stands for it.
            normalise: make every vector of length 1, so that products of two are cosines.
            tell: is told how many texts are done.
        """
        refuse_one(texts, "text")
        model, rows = self.model, self.tokenizer.encode_batch(list(texts))
        n_done, result = 0, torch.empty(len(rows), model.config.d_model)
        with evaluating(model):
            for batch in text_batches(rows, [0] * len(rows), model.config.max_seq_len, self.reading.batch_tokens):
                source = batch.source.to(model.device)
                result[list(batch.samples)] = mean_pooled((self.reader or model).encode(source), source).to(result)
                n_done += len(batch.samples)
                tell(n_done, len(rows))
        return F.normalize(result, dim=-1) if normalise else result
