"""llama.cpp generates with the transformers library's GPT-2: all of its parameters, and its tokens."""

import math
from pathlib import Path

import pytest
import torch

from benchmarks.families import build_transformers_model, families
from benchmarks.peers import llama_cpp
from benchmarks.shapes import random_tokens

pytestmark = pytest.mark.skipif(not llama_cpp.installed(), reason="llama-cpp-python and gguf are not installed")
(FAMILY,) = (family for family in families(quick=True) if family.name == "gpt2-small")


def test_every_type_generates_as_many_tokens_as_the_others() -> None:
    found = llama_cpp.workloads(FAMILY)
    assert list(found) == [("generation, batch 1", kind) for kind in llama_cpp.MAX_RELATIVE_ERROR]
    assert all(workload() == [FAMILY.new] for workload in found.values())


def test_both_libraries_generate_the_same_tokens() -> None:
    torch.manual_seed(1)
    model = build_transformers_model(FAMILY).eval()
    prompt, n_new = random_tokens(1, 6, FAMILY.config.vocab_size, 3), 20
    expected = model.generate(prompt, do_sample=False, min_new_tokens=n_new, max_new_tokens=n_new, pad_token_id=0)[0, 6:].tolist()
    found = {kind: decoder.generate(prompt[0].tolist(), n_new) for kind, decoder in llama_cpp.build_decoders(model, FAMILY).items()}
    assert found["F32"] == found["F16"] == expected


def test_all_parameters_are_written_and_all_matrices_are_quantized(tmp_path: Path) -> None:
    import gguf

    model, source = build_transformers_model(FAMILY), tmp_path / "F32.gguf"
    llama_cpp.write_gguf(model, FAMILY, source)
    tensors = {kind: gguf.GGUFReader(llama_cpp.quantize(source, tmp_path / kind, kind)).tensors for kind in ("F16", "Q8_0", "Q4_0")}
    for kind, each in tensors.items():
        assert sum(math.prod(tensor.shape.tolist()) for tensor in each) == sum(p.numel() for p in model.parameters())
        types = {tensor.tensor_type.name for tensor in each if len(tensor.shape) > 1 and tensor.name != "position_embd.weight"}
        assert types == {kind}


def test_different_logits_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llama_cpp.MAX_RELATIVE_ERROR, "Q8_0", 1e-4)
    with pytest.raises(RuntimeError, match=r"llama\.cpp Q8_0: expected the logits of the exported model, found a relative error"):
        llama_cpp.workloads(FAMILY)
