"""A search is traced by a pass over what it found, whose probabilities are those of the decoder."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.tiers import every
from transom.errors import ConfigError
from transom.inspection.certify import CertificationError
from transom.inspection.decoding_trace import SearchTrace, trace_search

SIZES = ["model.d_model=32", "model.n_heads=2", "model.d_ff=32", "training.batch_tokens=128", "training.max_steps=3"]


class Runs(dict[str, Path]):
    """A translator and a language model, trained for a few steps when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        (self.folder / "text.txt").write_text("the cat sees the dog and the dog sees the cat\n" * 40, encoding="utf-8")
        if name == "translation":
            transom.train("reverse", self.folder / name, [*SIZES, "model.n_encoder_layers=1", "model.n_decoder_layers=2"])
        else:
            options = [f"data.root={self.folder}", "data.train.files=text.txt", "data.valid.files=text.txt", "tokenizer.vocab_size=60"]
            scaling = "{kind='dynamic', factor=8.0}" if name == "dynamic" else "'none'"  # from 8 tokens on; the prompt has 9
            options += ["model.n_layers=2", "model.max_seq_len=64", f"model.position={{kind='rotary', rope_scaling={scaling}}}"]
            transom.train("shakespeare-char", self.folder / name, [*SIZES, *options])
        return self.setdefault(name, self.folder / name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def searched(run: Any, name: str, **options: Any) -> SearchTrace:
    if name == "translation":
        return trace_search(run, "a b c d e", ["weights", "probs"], **{"beam_size": 3} | options)
    most = 40 if name == "dynamic" else 12  # more than are found: the limit, not the text, determines the frequencies
    return trace_search(run, "the cat ", ["weights", "probs"], **{"max_new_tokens": most, "seed": 1} | options)


@pytest.mark.parametrize("name", every(2, ["language", "translation", "dynamic"]))
def test_a_search_is_certified_in_float32(runs: dict[str, Path], name: str) -> None:
    run = transom.load(runs[name], "fp32")
    search, found, certificate = searched(run, name)
    certificate.check()
    assert search.decoder in (None, "fp32") and certificate.n_steps == len(search.tokens) + 1  # the last step is that of the end token
    assert all(each.ok for each in found.certify()) and found.certify()
    chosen = found["probs"][0, -len(search.tokens) - 1 :][range(len(search.tokens)), list(search.tokens)].log().sum()
    if name != "translation":
        assert float(chosen) == pytest.approx(sum(map(_log, search.answer.probabilities)), abs=1e-4)
    # another text than the one that was found has other probabilities
    other = [(t + 1) % found["probs"].shape[-1] for t in search.tokens]
    assert not torch.allclose(found["probs"][0, -len(other) - 1 :][range(len(other)), other].log().sum(), chosen)


def _log(p: float) -> float:
    return float(torch.tensor(p, dtype=torch.float64).log())


@pytest.mark.parametrize("name", every(2, ["language", "translation"]))
def test_other_weights_than_the_decoder_s_are_found(runs: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder with stale weights computes other probabilities than the pass."""
    run = transom.load(runs[name], "fp32")
    record = run.record_search

    def stale(*args: Any, **options: Any) -> Any:
        found = record(*args, **options)
        with torch.no_grad():
            next(run.model.decoder.parameters()).mul_(1.05)
        return found

    monkeypatch.setattr(type(run), "record_search", lambda _, *args, **options: stale(*args, **options))
    certificate = searched(run, name).certificate
    assert not certificate.ok
    with pytest.raises(CertificationError, match=r"found a difference of .* in step \d+, of which rounding explains"):
        certificate.check()


def test_what_cannot_be_traced_is_refused(runs: dict[str, Path]) -> None:
    run = transom.load(runs["language"], "fp32")
    with pytest.raises(ConfigError, match=re.escape("expected at most 64 tokens, the context window, found 81")):
        trace_search(run, "the cat ", max_new_tokens=72, min_new_tokens=71, seed=1)
    with pytest.raises(ConfigError, match="expected a translator or language model, found a Namespace"):
        trace_search(type("Namespace", (), {})(), "x")
