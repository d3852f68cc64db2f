"""From texts to vectors."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.decoding.inference import evaluating
from transom.errors import DataError
from transom.inputs.labelled import text_batches
from transom.inputs.tokenizer import Tokenizer
from transom.models.encoder import EncoderTransformer, mean_pooled


@torch.inference_mode()
def embed(
    model: EncoderTransformer, tokenizer: Tokenizer, texts: Sequence[str], normalise: bool = True, batch_tokens: int = 8192
) -> Float[Tensor, "texts d_model"]:
    """Give each text a vector: the mean of its tokens' last vectors (Reimers & Gurevych 2019, section 3).

    Args:
        model: an encoder, ready to answer.
        tokenizer: of its texts.
        texts: any number; the beginning of one that is longer than the model reads stands for it.
        normalise: make every vector of length 1, so that products of two are cosines.
        batch_tokens: most tokens of a batch, padding included.
    """
    if isinstance(texts, str):
        raise DataError(f"expected a list of texts, found one text: [{texts[:40]!r}]")
    rows, device = tokenizer.encode_batch(list(texts)), model.embedding.tokens.weight.device
    result = torch.empty(len(rows), model.config.d_model)
    with evaluating(model):
        for batch in text_batches(rows, [0] * len(rows), model.config.max_seq_len, batch_tokens):
            source = batch.source.to(device)
            result[list(batch.samples)] = mean_pooled(model.encode(source).float(), source).to(result)
    return F.normalize(result, dim=-1) if normalise else result
