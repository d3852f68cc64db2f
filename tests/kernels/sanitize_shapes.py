"""Search with a library that was built by sanitizers: ``python -m tests.kernels.sanitize_shapes LIBRARY``, under their runtime.

Every shape of ``SHAPES`` in each weight type, by one thread and by several; each logit must be finite.
"""

import ctypes
import itertools
import sys

import torch
from pydantic import TypeAdapter

from tests.kernels.test_native_decoder import EOS, LANGUAGE_VARIANTS, SOS, VARIANTS, VOCAB, language_model, model_of
from transom.config.model import AnyModel
from transom.data.batch import PaddedSequences
from transom.decoding.backends import native_blocks
from transom.decoding.backends.native_blocks import Int8Stack
from transom.decoding.backends.native_decoder import WEIGHT_TYPES, NativeLanguageModel, NativeSeq2Seq, TiledLinear
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import LengthLimits
from transom.decoding.search.loop import SearchRequest, SuppressTokens
from transom.kernels.native_library import declare_functions, use_openmp
from transom.models.build import build_model

SHAPES = [
    ([[5, 6, 7, 2]], 1, 4),
    ([[5, 2]], 1, 1),
    ([[0, 0]], 3, 2),  # padding alone
    ([[0, 0, 0], [4, 5, 2]], 2, 3),
    ([[3, 4, 5, 6, 2], [7, 2], [*range(3, 23), 2]], 60, 5),  # more beams than the 43 symbols
    ([[2]], 17, 24),
]
"""Sources, beams of each, and most tokens."""


def load(path: str) -> ctypes.CDLL:
    """Load a library and tell ctypes about its functions."""
    return use_openmp(declare_functions(ctypes.CDLL(path)))


def run(library: ctypes.CDLL) -> int:
    """Search every shape; return the number of steps."""
    n_steps = 0
    for kind in WEIGHT_TYPES:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            for fields in (VARIANTS[0], VARIANTS[-1]):
                model = model_of(fields)
                translator = NativeSeq2Seq(library, model, kind, model.encode)
                for sources, n_beams, max_length in SHAPES:
                    rows = len(sources) * n_beams
                    cache = translator.start(translator.encode(PaddedSequences.pad(sources)), n_beams, max_length)
                    for i in range(max_length):
                        logits = translator.step(torch.full((rows, 1), 1 + i % 40), cache)
                        assert logits.isfinite().all()
                        cache.reorder(torch.arange(rows).flip(0) if i % 2 else torch.zeros(rows, dtype=torch.long))
                        n_steps += 1
                    limits = LengthLimits(torch.zeros(len(sources), dtype=torch.long), 1 + torch.arange(len(sources)) % max_length)
                    processors = [SuppressTokens(torch.tensor([0, VOCAB - 1]))]
                    request = SearchRequest(PaddedSequences.pad(sources), GreedySearch(EOS), limits, SOS, EOS, processors)
                    assert (translator.search(request) is None) == (model.logit_softcap is not None)
            for fields in LANGUAGE_VARIANTS[:3]:
                writer = NativeLanguageModel(library, language_model(fields), kind)
                for prompt in ([[1]], [[1, 4, 5]], [[1, 4], [1, 7]]):
                    cache = writer.start(PaddedSequences.pad(prompt), 2, 3)
                    for _ in range(3):
                        assert writer.step(torch.ones(2 * len(prompt), 1, dtype=torch.long), cache).isfinite().all()
                        n_steps += 1
    return n_steps + read_sequences(library)


def read_sequences(library: ctypes.CDLL) -> int:
    """Read sequences by an encoder in int8, by chunks of rows and one after another; return how many times."""
    fields: dict[str, object] = {"kind": "encoder", "d_model": 40, "n_layers": 2, "n_heads": 2, "d_head": 16, "d_value": 32, "d_ff": 48}
    model = build_model(
        TypeAdapter(AnyModel).validate_python(fields | {"vocab_size": 40, "max_seq_len": 128, "feed_forward": {"kind": "gelu"}})
    )
    stack, n_reads = Int8Stack(library, model.encoder.eval()), 0
    for threads, at_least, (rows, length) in itertools.product((1, 3), (0, 10**9), ((1, 1), (9, 1), (7, 25), (4, 97))):
        torch.set_num_threads(threads)
        native_blocks.MIN_SEQUENCES = at_least
        hidden = torch.zeros(rows, 1, 1, length).masked_fill_(torch.arange(length) > rows, -torch.inf)
        for bias in (None, hidden, torch.randn(1, 2, length, length)):
            assert stack.read(torch.randn(rows, length, 40), bias).isfinite().all()
            n_reads += 1
    return n_reads


def overrun(library: ctypes.CDLL) -> None:
    """Have a product of 17 outputs written where 16 have room: its last store, which is masked, must be found."""
    linear = TiledLinear(library, "bf16", torch.ones(17, 64))
    x, y = torch.ones(1, 64), torch.empty(16)
    library.transom_linear(WEIGHT_TYPES["bf16"], ctypes.byref(linear.layout), x.data_ptr(), len(x), y.data_ptr(), 1)


if __name__ == "__main__":
    with torch.inference_mode():
        given = load(sys.argv[1])
        if sys.argv[2:] == ["planted"]:
            overrun(given)
        else:
            print(run(given), "steps")
