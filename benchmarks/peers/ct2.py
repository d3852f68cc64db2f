"""Translation by CTranslate2 with Marian's weights, in every compute type that this processor supports."""

import tempfile
from collections.abc import Callable
from functools import partial

import ctranslate2
from ctranslate2.converters.transformers import MarianMTLoader
from transformers import MarianMTModel

from benchmarks.peers.marian import EOS, fresh_model
from benchmarks.shapes import Task, random_tokens

TYPES = ("float32", "int8", "int8_float32", "bfloat16", "int8_bfloat16")


def convert(model: MarianMTModel, folder: str) -> None:
    """Write a model to a folder in CTranslate2's format."""
    spec = MarianMTLoader().get_model_spec(model)
    names = _names(model.config.vocab_size)[:-1]  # without padding
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.eos_token, spec.config.unk_token = names[EOS], names[1]
    spec.config.decoder_start_token, spec.config.bos_token = names[1], names[2]
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(folder)


def translators(tasks: list[Task], threads: int) -> dict[tuple[str, str], Callable[[], list[list[int]]]]:
    """Return ``translate_batch`` workloads by (task, mode).

    Every compute type runs with all threads on one batch. A batch of several rows also runs split over parallel translators of one thread
    each, a single row also with one thread.
    """
    shape = tasks[0].shape
    names = _names(shape.vocab)
    supported = [name for name in TYPES if name in ctranslate2.get_supported_compute_types("cpu")]
    workloads: dict[tuple[str, str], Callable[[], list[list[int]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        convert(fresh_model(shape), folder)
        for name in supported:
            one_batch = _load(folder, name, 1, threads)
            workloads |= {(task.name, name): partial(_translate, one_batch, task, names, 1) for task in tasks}
            if threads > 1:
                one_thread, split_batch = _load(folder, name, 1, 1), _load(folder, name, threads, 1)
                for task in tasks:
                    if task.rows == 1:
                        workloads[task.name, f"{name}, 1 thread"] = partial(_translate, one_thread, task, names, 1)
                    else:
                        workloads[task.name, f"{name}, split batch"] = partial(_translate, split_batch, task, names, threads)
    return workloads


def _load(folder: str, compute_type: str, workers: int, threads: int) -> ctranslate2.Translator:
    return ctranslate2.Translator(folder, device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads)


def _translate(translator: ctranslate2.Translator, task: Task, names: list[str], workers: int) -> list[list[int]]:
    source = [[names[i] for i in row] for row in random_tokens(task.rows, task.shape.source, task.shape.vocab, 3).tolist()]
    length = task.shape.target
    results = translator.translate_batch(
        source, beam_size=task.beams, max_batch_size=-(-task.rows // workers), min_decoding_length=length, max_decoding_length=length
    )
    return [[int(name[1:]) for name in result.hypotheses[0]] for result in results]


def _names(vocab: int) -> list[str]:
    return [f"t{i}" for i in range(vocab)]
