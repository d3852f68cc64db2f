"""CTranslate2 on Marian's weights, in every type that it multiplies fast here."""

from collections.abc import Callable
from pathlib import Path

import ctranslate2
from ctranslate2.converters.transformers import MarianMTLoader
from transformers import MarianMTModel

from benchmarks.peers.marian import EOS
from benchmarks.shapes import Task, symbols

TYPES = ("float32", "int8", "int8_float32", "bfloat16", "int8_bfloat16")


def convert(model: MarianMTModel, folder: Path) -> None:
    """Write a model in CTranslate2's format."""
    spec = MarianMTLoader().get_model_spec(model)
    names = _names(model.config.vocab_size)[:-1]  # all but padding
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.eos_token, spec.config.unk_token = names[EOS], names[1]
    spec.config.decoder_start_token, spec.config.bos_token = names[1], names[2]
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def translators(task: Task, folder: Path, threads: int) -> dict[str, Callable[[], list[list[int]]]]:
    """Give ``translate_batch`` in every type and, for several threads, also with the batch dealt out to them or on one thread alone."""
    names = _names(task.shape.vocab)
    source = [[names[i] for i in row] for row in symbols(task.rows, task.shape.source, task.shape.vocab, 3).tolist()]
    length = task.shape.target

    def translate(compute_type: str, workers: int, threads_a_worker: int) -> Callable[[], list[list[int]]]:
        translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads_a_worker
        )
        rows = -(-task.rows // workers)

        def run() -> list[list[int]]:
            found = translator.translate_batch(
                source, beam_size=task.beams, max_batch_size=rows, min_decoding_length=length, max_decoding_length=length
            )
            return [[int(name[1:]) for name in result.hypotheses[0]] for result in found]

        return run

    supported = [name for name in TYPES if name in ctranslate2.get_supported_compute_types("cpu")]
    modes = {name: translate(name, 1, threads) for name in supported}
    if threads > 1 and task.rows == 1:
        modes |= {f"{name}, 1 thread": translate(name, 1, 1) for name in supported}
    elif threads > 1:
        modes |= {f"{name}, dealt out": translate(name, threads, 1) for name in supported}
    return modes


def _names(vocab: int) -> list[str]:
    return [f"t{i}" for i in range(vocab)]
