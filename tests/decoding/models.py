"""Small encoder-decoders with random weights, and a slow reference for their probabilities."""

import torch
from pydantic import TypeAdapter

from tests.decoding.tables import SOS, Prefix
from transom.config.architecture import EncoderDecoderConfig
from transom.config.data import PairTokenizerConfig as TokenizerConfig
from transom.config.model import AnyModel
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.models.base import Seq2SeqModel
from transom.models.build import build_model

LETTERS = "abcdefgh .!?\n"


def tiny_model(vocab: int, seed: int = 1, dtype: torch.dtype = torch.float64, max_seq_len: int = 24, **fields: object) -> Seq2SeqModel:
    """Build a model whose outputs vary with its input: untied, with weights scaled up from initialization."""
    size = {"d_model": 16, "n_encoder_layers": 2, "n_decoder_layers": 2, "tie_embeddings": "none", "max_seq_len": max_seq_len}
    own = {} if "kind" in fields else {"kind": "seq2seq", "n_heads": 4, "d_ff": 24}
    torch.manual_seed(seed)
    config: EncoderDecoderConfig = TypeAdapter(AnyModel).validate_python(
        size | {"source_vocab_size": vocab, "target_vocab_size": vocab} | own | fields
    )
    model = build_model(config)
    assert isinstance(model, Seq2SeqModel)
    with torch.no_grad():
        for stack in (model.get_submodule("encoder"), model.get_submodule("decoder")):
            for matrix in (p for p in stack.parameters() if p.dim() == 2):
                matrix *= 2
        model.unembedding.weight.normal_(std=0.5)
    return model.to(dtype).eval()


def letter_tokenizers(letters: str = LETTERS) -> Tokenizers:
    tokenizer = Tokenizer.train([letters], TokenizerConfig(kind="char", vocab_size=max(8, len(letters) + 4)))
    return Tokenizers(tokenizer)


class Uncached:
    """Evaluates a model on one prefix at a time, without batching, padding or cache."""

    def __init__(self, model: Seq2SeqModel) -> None:
        self.model, self.n_symbols = model, model.unembedding.out_features

    @torch.inference_mode()
    def log_p(self, source: Prefix, prefix: Prefix) -> list[float]:
        target = PaddedSequences.pad([[SOS, *prefix]])
        batch = TranslationBatch(PaddedSequences.pad([source]), target, target.tokens, (0,))
        found: list[float] = self.model(batch)[0, -1].log_softmax(-1).tolist()
        return found
