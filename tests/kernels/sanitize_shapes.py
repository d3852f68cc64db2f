"""Search with a library that was built by sanitizers: ``python -m tests.kernels.sanitize_shapes LIBRARY``, under their runtime.

Every shape of ``SHAPES`` in each weight type, by one thread and by several; each logit must be finite.
"""

import ctypes
import sys

import torch

from tests.kernels.test_native_decoder import LANGUAGE_VARIANTS, VARIANTS, language_model, model_of
from transom.data.batch import PaddedSequences
from transom.decoding.backends.native_decoder import WEIGHT_TYPES, NativeLanguageModel, NativeSeq2Seq, TiledLinear
from transom.kernels.native_library import declare_functions, use_openmp

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
            for fields in LANGUAGE_VARIANTS[:3]:
                writer = NativeLanguageModel(library, language_model(fields), kind)
                for prompt in ([[1]], [[1, 4, 5]], [[1, 4], [1, 7]]):
                    cache = writer.start(PaddedSequences.pad(prompt), 2, 3)
                    for _ in range(3):
                        assert writer.step(torch.ones(2 * len(prompt), 1, dtype=torch.long), cache).isfinite().all()
                        n_steps += 1
    return n_steps


def overrun(library: ctypes.CDLL) -> None:
    """Have a product of 17 outputs written where 16 have room: its last store, which is masked, must be found."""
    linear = TiledLinear(library, "bf16", torch.ones(17, 64))
    x, y = torch.ones(1, 64), torch.empty(16)
    library.transom_linear(WEIGHT_TYPES["bf16"], ctypes.byref(linear.layout), x.data_ptr(), len(x), None, y.data_ptr(), 1)


if __name__ == "__main__":
    with torch.inference_mode():
        given = load(sys.argv[1])
        if sys.argv[2:] == ["planted"]:
            overrun(given)
        else:
            print(run(given), "steps")
