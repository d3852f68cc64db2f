"""Greedy generation by llama.cpp with the weights of the transformers library's GPT-2, in float and in its quantized types.

llama-cpp-python is compiled from source, in about half an hour on one core, so it is not among transom's extras:
``CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-deps llama-cpp-python gguf diskcache``. On a processor with a matrix unit, set
``CC=clang CXX=clang++``: what gcc 12 compiles ends with an illegal instruction (``tileloadd``), as it configures the tiles before their
configuration is written. All matrices of a file have the same type, also the embedding, which is faster than llama.cpp's mixtures of types
such as Q4_K_M. Its defaults are its fastest settings: flash attention, memory mapping, and weights repacked for the processor.
"""

import importlib.util
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.families import Family, build_transformers_model
from benchmarks.shapes import random_tokens

Workloads = dict[tuple[str, str], Callable[[], Any]]

MAX_RELATIVE_ERROR = {"F32": 0.005, "F16": 0.01, "Q8_0": 0.1, "Q6_K": 0.2, "Q4_K": 0.5, "Q4_0": 0.5}
"""Types of weights, with the maximum norm of the logits' difference from the exported model, relative to the norm of the logits.

Weights of a random model have no structure, so that four bits lose more than in a trained one.
"""


def installed() -> list[str]:
    """Return the name of this system if its libraries are installed."""
    return ["llama.cpp"] if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf") else []


def workloads(family: Family) -> Workloads:
    """Return the generation after a single prompt by type of the weights; a workload returns the number of new tokens.

    Raises:
        RuntimeError: the logits of a type differ from those of the transformers library's model.
    """
    torch.manual_seed(1)
    model = build_transformers_model(family).eval()
    ((rows, length),) = family.prompts
    prompt = random_tokens(rows, length, family.config.vocab_size, 3)  # type: ignore[attr-defined]
    with torch.inference_mode():
        expected = model(prompt).logits[0, -1].numpy()
    found: Workloads = {}
    for kind, decoder in build_decoders(model, family).items():
        error = np.linalg.norm(decoder.read(prompt[0].tolist()) - expected) / np.linalg.norm(expected)
        if not error < MAX_RELATIVE_ERROR[kind]:
            raise RuntimeError(f"llama.cpp {kind}: expected the logits of the exported model, found a relative error of {error:.2g}")
        found[f"generation, batch {rows}", kind] = partial(_count_new_tokens, decoder, prompt[0].tolist(), family.new)
    return found


def build_decoders(model: nn.Module, family: Family) -> dict[str, "Decoder"]:
    """Write a model in every type of ``MAX_RELATIVE_ERROR`` and load each file."""
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)  # it logs warnings as errors
    ((_, length),) = family.prompts
    c: Any = family.config
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "F32.gguf")
        write_gguf(model, family, source)
        decoders = {}
        for kind in MAX_RELATIVE_ERROR:
            path = source if kind == "F32" else quantize(source, Path(folder, f"{kind}.gguf"), kind)
            decoders[kind] = Decoder(path, length + family.new, c.vocab_size)
    return decoders


def write_gguf(model: nn.Module, family: Family, path: Path) -> None:
    """Write a GPT-2 of the transformers library as a GGUF file in float32, without a tokenizer."""
    import gguf

    c: Any = family.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(c.max_seq_len)
    writer.add_embedding_length(c.d_model)
    writer.add_feed_forward_length(c.d_ff)
    writer.add_block_count(c.n_layers)
    writer.add_head_count(c.n_heads)
    writer.add_layer_norm_eps(model.config.layer_norm_epsilon)  # type: ignore[union-attr, arg-type]
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, c.n_layers)
    for name, parameter in model.named_parameters():  # the output projection is the embedding
        module, kind = name.rsplit(".", 1)
        is_conv1d = type(model.get_submodule(module)).__name__ == "Conv1D"  # its weights are (in, out)
        weights = parameter.detach().T if is_conv1d and kind == "weight" else parameter.detach()
        writer.add_tensor(f"{names.get_name(module)}.{kind}", weights.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, target: Path, kind: str) -> Path:
    """Write a file with all matrices in one type, or in the next larger type for matrices whose rows this type cannot divide."""
    import llama_cpp

    file_types = {"Q4_K": "Q4_K_S"}  # files that are otherwise a mixture
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_types.get(kind, kind)}")
    params.nthread, params.pure = torch.get_num_threads(), True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) != 0:
        raise RuntimeError(f"llama.cpp cannot quantize a model to {kind}")
    return target


class Decoder:
    """A loaded model with the cache of one sequence."""

    def __init__(self, path: Path, n_tokens: int, n_vocab: int) -> None:
        """Load a file for sequences of at most ``n_tokens`` tokens."""
        import llama_cpp

        self._library, self._n_vocab = llama_cpp, n_vocab
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_tokens, torch.get_num_threads(), torch.get_num_threads()
        self._context = llama_cpp.llama_init_from_model(model, params) if model else None
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot load {path.name}")

    def read(self, tokens: list[int]) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return the logits after a new sequence of tokens."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), False)
        return self._step(tokens).copy()

    def generate(self, prompt: list[int], n_new: int) -> list[int]:
        """Return the ``n_new`` most probable tokens after a prompt, one after the other."""
        new = [int(self.read(prompt).argmax())]
        while len(new) < n_new:
            new.append(int(self._step(new[-1:]).argmax()))
        return new

    def _step(self, tokens: list[int]) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Append tokens to the sequence; return the logits after the last one, which are valid until the next step."""
        array = (self._library.llama_token * len(tokens))(*tokens)
        if self._library.llama_decode(self._context, self._library.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama.cpp failed to compute a step")
        return np.ctypeslib.as_array(self._library.llama_get_logits_ith(self._context, -1), (self._n_vocab,))


def _count_new_tokens(decoder: Decoder, prompt: list[int], n_new: int) -> list[int]:
    return [len(decoder.generate(prompt, n_new))]
