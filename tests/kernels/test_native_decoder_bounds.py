"""Bounds of the compiled step hold without assertions, and no C++ exception leaves it."""

import ctypes
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.test_native_decoder import LLAMA, VOCAB, library, model_of, needs_library
from transom.data.batch import PaddedSequences
from transom.decoding.backends.native_decoder import NativeCache, NativeDecoder, NativeSeq2Seq
from transom.kernels.native_structs import DecoderStruct, StateStruct, raise_for_status
from transom.models.seq2seq import Seq2SeqTransformer

pytestmark = [needs_library, pytest.mark.kernels]
ROOT = Path(__file__).parents[2]


def searching(sources: list[list[int]], n_beams: int = 2, max_length: int = 4) -> tuple[NativeSeq2Seq, NativeCache]:
    model = model_of()
    assert isinstance(model, Seq2SeqTransformer)
    found = NativeSeq2Seq(library(), model.eval(), "bf16", model.encode)
    with torch.inference_mode():
        return found, found.start(found.encode(PaddedSequences.pad(sources)), n_beams, max_length)


def test_a_full_cache_more_rows_and_other_shapes_are_refused() -> None:
    found, cache = searching([[3, 4, 2], [5, 2]])
    tokens = torch.ones(4, 1, dtype=torch.long)
    for wrong in (tokens[:3], tokens.to("meta")):
        with pytest.raises(ValueError, match="expected 4 rows of one token on the CPU"):
            found.step(wrong, cache)
    with pytest.raises(IndexError, match="expected at most 4 rows, found 5"):
        cache.reorder(torch.zeros(5, dtype=torch.long))
    with pytest.raises(IndexError):
        cache.reorder(torch.tensor([4]))
    for _ in range(4):
        found.step(tokens, cache)
    with pytest.raises(IndexError, match="expected at most 4 tokens in the cache, found 5"):
        found.step(tokens, cache)
    other = model_of({"n_heads": 5})
    assert isinstance(other, Seq2SeqTransformer)
    with pytest.raises(ValueError, match="expected a cache of"):
        NativeDecoder(library(), "bf16", other).step(tokens, searching([[3, 4, 2], [5, 2]])[1])
    kept = torch.zeros(1, 4, 1, 5, 32)
    for memory, max_length in ((None, 4), (kept, 9)):
        with pytest.raises(ValueError, match="expected max_length >= "):
            NativeCache(library(), kept, memory, torch.tensor([5] * 4), 2, max_length)


def test_the_step_itself_refuses_what_is_out_of_bounds() -> None:
    found, cache = searching([[3, 4, 2], [5, 2]])
    layout = found.decoder._layout
    for field, value in (("length", 4), ("length", -1), ("rows", 5), ("rows", 0), ("max_source_length", -1)):
        state = StateStruct.from_buffer_copy(cache.state)
        setattr(state, field, value)
        with pytest.raises(IndexError, match="out of bounds"):
            raise_for_status(library().transom_step(ctypes.byref(layout), ctypes.byref(state), cache.workspace))
    for field, value in (("d_head", 17), ("n_kv_heads", 0), ("n_kv_heads", 2), ("rotary_pairs", 9)):
        wrong = DecoderStruct.from_buffer_copy(layout)
        setattr(wrong, field, value)
        with pytest.raises(IndexError, match="out of bounds"):
            raise_for_status(library().transom_step(ctypes.byref(wrong), ctypes.byref(cache.state), cache.workspace))
    with pytest.raises(IndexError):
        raise_for_status(library().transom_step(ctypes.byref(layout), ctypes.byref(cache.state), None))
    for token in (-1, VOCAB):
        tokens = torch.tensor([[3], [4], [5], [token]])
        with pytest.raises(IndexError, match="out of bounds"):
            found.step(tokens, cache)
    assert cache.length == 0
    found.step(torch.tensor([[3, 9], [4, 9], [5, 9], [VOCAB - 1, 9]])[:, :1], cache)  # tokens of a longer table


def test_positions_end_with_their_table() -> None:
    model = model_of({"max_seq_len": 6, "position": {"kind": "learned"}})
    assert isinstance(model, Seq2SeqTransformer)
    found = NativeSeq2Seq(library(), model.eval(), "fp32", model.encode)
    with torch.inference_mode():
        cache = found.start(found.encode(PaddedSequences.pad([[3, 4, 2]])), 1, 9)
    tokens = torch.ones(1, 1, dtype=torch.long)
    for _ in range(6):
        found.step(tokens, cache)
    with pytest.raises(IndexError, match="out of bounds"):
        found.step(tokens, cache)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_logits_are_float32_whatever_the_default_dtype_and_tokens_of_any_integer_dtype(default: torch.dtype) -> None:
    found, cache = searching([[3, 4, 2]])
    same, other = searching([[3, 4, 2]])
    tokens = torch.tensor([[4], [5]])
    torch.set_default_dtype(default)
    try:
        logits = same.step(tokens.int(), other)
    finally:
        torch.set_default_dtype(torch.float32)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, found.step(tokens, cache))


def test_more_parts_than_threads_that_share_a_product() -> None:
    before = torch.get_num_threads()
    found, expected = (searching([[3, 4, 2], [5, 2]], n_beams=30, max_length=8) for _ in range(2))
    torch.set_num_threads(12)  # more than MAX_THREADS, and 60 rows are enough for all
    cache = searching([[3, 4, 2], [5, 2]], n_beams=30, max_length=8)[1]
    torch.set_num_threads(before)
    tokens = torch.arange(60)[:, None] % VOCAB
    for _ in range(8):  # divided rows and shared products
        assert torch.equal(found[0].step(tokens, cache), expected[0].step(tokens, expected[1]))


@torch.inference_mode()
@pytest.mark.parametrize("fields", [{}, {"logit_softcap": 2.0}])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_log_probabilities_are_those_of_the_logits(n_threads: int, fields: dict[str, object]) -> None:
    model, before = model_of(fields, torch.float32), torch.get_num_threads()
    fast = NativeSeq2Seq(library(), model, "int8", model.encode)
    memory = fast.encode(PaddedSequences.pad([[3, 4, 2], [5, 2]]))
    for n_beams in (1, 10):  # 2 rows share products, 20 rows are divided too
        torch.set_num_threads(n_threads)
        caches = [fast.start(memory, n_beams, 8) for _ in range(2)]
        torch.set_num_threads(before)
        tokens = torch.arange(2 * n_beams)[:, None] % VOCAB
        for _ in range(8):
            logits, log_p = fast.step(tokens, caches[0])[:, -1].double(), fast.log_probs(tokens, caches[1])
            assert log_p.shape == logits.shape
            assert torch.allclose(log_p.double(), logits.log_softmax(-1), rtol=0, atol=4e-6)
            tokens = log_p.argmax(-1, keepdim=True)


@torch.inference_mode()
@pytest.mark.parametrize("values", [[math.nan], [math.inf], [-math.inf] * VOCAB, [-math.inf] * (VOCAB - 1)])
def test_log_probabilities_of_infinities_and_nan_are_pytorchs(values: list[float]) -> None:
    model = model_of({"head_bias": True}, torch.float32)
    model.unembedding.bias[: len(values)] = torch.tensor(values)
    fast = NativeSeq2Seq(library(), model, "fp32", model.encode)
    memory, tokens = fast.encode(PaddedSequences.pad([[3, 4, 2], [5, 2]])), torch.tensor([[4], [5]])
    logits, log_p = (step(tokens, fast.start(memory, 1, 4)).view(2, VOCAB) for step in (fast.step, fast.log_probs))
    assert torch.allclose(log_p, logits.log_softmax(-1), atol=1e-5, equal_nan=True)


@torch.inference_mode()
def test_a_model_in_bfloat16_embeds_as_in_float32() -> None:
    rounded = model_of({"d_model": 72}, torch.float32).bfloat16()
    exact = model_of({"d_model": 72}, torch.float32)
    exact.load_state_dict({name: x.float() for name, x in rounded.state_dict().items()})
    source = PaddedSequences.pad([[3, 4, 2], [5, 2]])
    memory = exact.encode(source)
    logits = []
    for model in (rounded, exact):
        fast = NativeSeq2Seq(library(), model, "fp32", model.encode)
        logits.append(fast.step(torch.tensor([[4], [5]]), fast.start(memory, 1, 4)))
    assert torch.allclose(logits[0], logits[1], rtol=1e-2, atol=1e-2)


def test_rotary_tables_end() -> None:
    model = model_of(LLAMA | {"max_seq_len": 6})
    assert isinstance(model, Seq2SeqTransformer)
    found = NativeSeq2Seq(library(), model.eval(), "fp32", model.encode)
    with torch.inference_mode():
        cache = found.start(found.encode(PaddedSequences.pad([[3, 4, 2]])), 1, 9)
    for _ in range(6):
        found.step(torch.ones(1, 1, dtype=torch.long), cache)
    with pytest.raises(IndexError, match="out of bounds"):
        found.step(torch.ones(1, 1, dtype=torch.long), cache)


def test_what_cannot_be_allocated_is_a_memory_error() -> None:
    found, cache = searching([[3, 4, 2]])
    huge = StateStruct.from_buffer_copy(cache.state)
    huge.rows = huge.capacity = 2**31 - 16
    with pytest.raises(MemoryError):
        raise_for_status(library().transom_step(ctypes.byref(found.decoder._layout), ctypes.byref(huge), cache.workspace))
    found.step(torch.ones(2, 1, dtype=torch.long), cache)  # and the workspace is as good as before


@pytest.mark.long
def test_bounds_hold_without_assertions() -> None:
    program = """
import torch
from tests.kernels.test_native_decoder_bounds import searching
assert False, "assertions are off"
found, cache = searching([[3, 4, 2]], 1, 1)
tokens = torch.ones(1, 1, dtype=torch.long)
found.step(tokens, cache)
try:
    found.step(tokens, cache)
except IndexError:
    raise SystemExit(7)
"""
    assert run(program, "-O").returncode == 7


def run(program: str, *flags: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, *flags, "-c", program], cwd=ROOT, capture_output=True, timeout=120)


@pytest.mark.parametrize("n_beams", [1, 50])
def test_sources_of_padding_alone_and_more_beams_than_symbols(n_beams: int) -> None:
    found, cache = searching([[0, 0], [5, 2]], n_beams)
    logits = found.step(torch.ones(2 * n_beams, 1, dtype=torch.long), cache)
    assert logits.isfinite().all()
    model = model_of().eval()
    with torch.inference_mode():
        memory = model.encode(PaddedSequences.pad([[0, 0], [5, 2]]))
        expected = model.step(torch.ones(2 * n_beams, 1, dtype=torch.long), model.start(memory, n_beams, 4))
    assert torch.allclose(logits.double(), expected, rtol=0, atol=0.02 * expected.abs().max().item())
