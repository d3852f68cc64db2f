"""Maps by tiles against whole maps, and traces in files against traces in memory."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transom
from tests.models.combinations import SET_TEXTS, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.model import DecoderConfig
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import CheckpointError, ConfigError
from transom.inspection import trace_files
from transom.inspection.attention_map import AttentionMap, attention_map
from transom.inspection.derive_attention import AttentionInputs, is_exact
from transom.inspection.trace import open_trace, trace
from transom.inspection.trace_files import MappedTensors
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.models.build import build_model

TRANSFORMERS = [number for number, fields in enumerate(SET_TEXTS) if fields["kind"] in ("seq2seq", "decoder", "encoder")]


@pytest.mark.parametrize("number", every(5, TRANSFORMERS, long=3))
def test_tiles_make_up_the_whole_map(number: int) -> None:
    """In layers of scaled dot products, with masks, biases, softcaps, sinks, grouped heads and routers of depth."""
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    _, found = trace(model, batch, ["*.weights"], store="all")
    exact = [path for path in (address.removesuffix(".weights") for address in found) if is_exact(model.get_submodule(path))]
    for path in exact:
        whole = found[f"{path}.weights"]
        for head in range(whole.shape[1]):
            tiles = found.map(path, head, text=1)
            n, m = tiles.shape
            above, below, left, right = slice(0, n // 2), slice(n // 2, n), slice(0, m // 2), slice(m // 2, m)
            rows = [torch.cat([tiles.tile(rows, keys) for keys in (left, right)], 1) for rows in (above, below)]
            assert torch.allclose(torch.cat(rows), whole[1, head], rtol=1e-10, atol=1e-12)


@pytest.fixture
def llama() -> tuple[Network, Any]:
    """A model with grouped heads and rotary positions, and two texts of which one is padded."""
    torch.manual_seed(1)
    fields = {"vocab_size": 20, "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 32, "max_seq_len": 64, "dropout": 0.0}
    model = build_model(DecoderConfig.model_validate(fields | {"position": {"kind": "rotary"}}))
    rows = PaddedSequences.pad([[*range(3, 19)] * 3, [5, 6, 7]])
    return model, TranslationBatch(rows, rows, rows.tokens, (0, 1))


def test_a_pass_keeps_one_head(llama: tuple[Network, Any]) -> None:
    model, batch = llama
    _, found = trace(model, batch, ["attn.weights"], store="all")
    for head in range(4):
        one = attention_map(model, batch, "decoder.blocks.1.attn", head)
        assert torch.equal(one.tile(), found.map("decoder.blocks.1.attn", head).tile())
        assert torch.allclose(one.tile(), found["decoder.blocks.1.attn.weights"][0, head], rtol=1e-5, atol=1e-7)
        assert one.certify().ok and one.certify().n_maps == 2
    with pytest.raises(ConfigError, match=r"head: expected a number from 0 to 3, found 4"):
        attention_map(model, batch, "decoder.blocks.1.attn", 4)
    with pytest.raises(ConfigError, match=r"found 'decoder.blocks.7.attn'; choose one of decoder.blocks.0.attn, decoder.blocks.1.attn"):
        attention_map(model, batch, "decoder.blocks.7.attn", 0)
    with pytest.raises(ConfigError, match="text: expected a number from 0 to 1, found 2"):
        attention_map(model, batch, "decoder.blocks.1.attn", 0, text=2)
    with pytest.raises(ConfigError, match=r"expected a layer of scaled dot-product attention, found GatedFeedForward"):
        AttentionMap(found.activations, "decoder.blocks.0.ff", 0)


def test_a_trace_in_files_is_the_one_in_memory(llama: tuple[Network, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "SHARD_BYTES", 20_000)
    model, batch = llama
    logits, kept = trace(model, batch, ["*.weights", "probs"], store="all")
    again, found = trace(model, batch, ["*.weights", "probs"], store="all", folder=tmp_path / "t")
    assert torch.equal(logits, again) and len(list((tmp_path / "t").glob("*.safetensors"))) > 3
    assert list(found) == list(kept) and all(torch.equal(found[name], kept[name]) for name in kept)
    opened, recorded = open_trace(model, tmp_path / "t"), kept.activations.recorded
    assert list(opened) == list(kept) and all(torch.equal(opened[name], kept[name]) for name in kept)
    assert set(opened.activations.recorded) == set(recorded)
    assert all(torch.equal(opened.activations[name], x) for name, x in recorded.items())
    assert opened.certify() == kept.certify() and len(opened.certify()) == 2
    assert opened.map("decoder.blocks.0.attn", 3).certify().ok


def test_what_was_written_before_a_crash_is_read(llama: tuple[Network, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "SHARD_BYTES", 1)
    model, batch = llama

    class Crash(Exception):
        pass

    def fail(*_: object) -> None:
        raise Crash

    handle = model.get_submodule("decoder.blocks.1.ff").register_forward_pre_hook(fail)
    with pytest.raises(Crash):
        trace(model, batch, ["*"], store="all", folder=tmp_path)
    handle.remove()
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["complete"] is False
    opened = open_trace(model, tmp_path)
    recorder = ActivationRecorder(["*"])
    with torch.no_grad():
        model.eval()(batch, recorder)
    assert "decoder.blocks.1.ff.hidden" not in opened.activations.recorded and "logits" not in opened
    assert {"decoder.blocks.1.attn.weights", "decoder.blocks.1.attn.z", "decoder.blocks.1.attn.out"} <= set(opened)
    assert all(torch.equal(opened[name], x) for name, x in recorder.activations.items() if name in opened)
    assert len(dict(opened)) == len(opened) and [each.ok for each in opened.certify()] == [True, True]
    assert opened.map("decoder.blocks.1.attn", 2).certify().ok


def test_broken_folders_and_other_weights_are_refused(llama: tuple[Network, Any], tmp_path: Path) -> None:
    model, batch = llama
    with pytest.raises(CheckpointError, match=r"trace.json: expected the list of a trace's files, found none"):
        open_trace(model, tmp_path)
    trace(model, batch, folder=tmp_path)
    (tmp_path / "trace.json").write_text('{"version": 1}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"trace.json: expected a trace of format 2, found format 1; write the trace again"):
        open_trace(model, tmp_path)
    (tmp_path / "trace.json").write_text('{"version": 2}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"found Field required"):
        open_trace(model, tmp_path)
    trace(model, batch, folder=tmp_path)
    (shard,) = tmp_path.glob("sites-00001.safetensors")
    shard.write_bytes(shard.read_bytes()[:100])
    mapped = MappedTensors(tmp_path, {"x": shard.name})
    with pytest.raises(CheckpointError, match=r"sites-00001.safetensors: expected safetensors, found a truncated file"):
        mapped["x"]
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"sites-00001.safetensors: expected .*, found"):
        mapped["x"]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(CheckpointError, match=r"expected a trace of this model's weights, found one of others"):
        open_trace(model, tmp_path)


@pytest.mark.parametrize("number", every(3, [n for n, fields in enumerate(SET_TEXTS) if "recurrent" in fields["kind"]], long=3))
def test_sites_of_a_loop_are_written_with_all_steps(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "SHARD_BYTES", 200)
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    _, kept = trace(model, batch, ["logits"], store="all")
    trace(model, batch, ["logits"], store="all", folder=tmp_path)
    found = open_trace(model, tmp_path).activations.recorded
    assert set(found) == set(kept.activations.recorded)
    assert all(torch.equal(found[name], x) for name, x in kept.activations.recorded.items())


def test_a_folder_holds_one_trace(llama: tuple[Network, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "SHARD_BYTES", 1)
    model, batch = llama
    trace(model, batch, store="all", folder=tmp_path)
    many = len(list(tmp_path.glob("*.safetensors")))
    _, kept = trace(model, torch.tensor([[3, 4]]), ["logits"], folder=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) < many
    assert torch.equal(open_trace(model, tmp_path)["logits"], kept["logits"])
    with pytest.raises(ConfigError, match=r"folder: expected names without .grad, found gradients"):
        trace(model, batch, ["logits.grad"], folder=tmp_path)


def test_a_digest_is_that_of_all_weights(llama: tuple[Network, Any]) -> None:
    """Of their order, and of buffers; not of the number of threads."""
    model = llama[0]
    digest, threads = trace_files.weights_digest(model), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert trace_files.weights_digest(model) == digest
    finally:
        torch.set_num_threads(threads)
    with torch.no_grad():
        weight = model.unembedding.weight
        weight.copy_(weight.flip(0))
    assert trace_files.weights_digest(model) != digest


def test_a_folder_gives_the_same_trace_again(llama: tuple[Network, Any], tmp_path: Path) -> None:
    """Heads, positions, temperature and edited layers are those of the pass, also where they are no longer in force."""
    model, batch = llama
    options: dict[str, Any] = {"heads": [3, 0], "positions": [5, 2], "temperature": 0.5}
    names = ["attn.weights", "attn.q", "probs"]
    with transom.edits(model, [{"kind": "ablate-heads", "blocks": [1], "heads": [2]}]):
        _, kept = trace(model, batch, names, **options)
        trace(model, batch, names, **options, folder=tmp_path)
    opened = open_trace(model, tmp_path)
    assert list(opened) == list(kept) and all(torch.equal(opened[name], kept[name]) for name in kept)
    assert (opened.heads, opened.positions, opened.activations.temperature) == ([3, 0], [5, 2], 0.5)
    assert torch.equal(opened["probs"], (2 * opened.activations["logits"][:, [5, 2]]).softmax(-1))
    assert opened.edited == {"decoder.blocks.1.attn"} == kept.edited
    assert [(each.address, each.ok, each.n_maps) for each in opened.certify()] == [("decoder.blocks.0.attn", True, 4)]


def test_a_folder_keeps_the_symbols_of_the_tokens(llama: tuple[Network, Any], tmp_path: Path) -> None:
    """They are read without the tokenizer of the run."""
    model, batch = llama
    tokenizer = Tokenizer.from_dict({"kind": "char", "lowercase": False, "units": list("abcdefghijklmnop")})
    run = SimpleNamespace(model=model, tokenizer=tokenizer)
    _, kept = trace(run, batch, ["logits"], folder=tmp_path)
    assert kept.tokens["target"][:2] == ["[UNK]", "a"]
    assert open_trace(model, tmp_path).tokens == kept.tokens


@pytest.mark.parametrize("number", every(5, TRANSFORMERS, long=3))
def test_a_map_reads_the_queries_of_its_text_only(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of other texts are not computed, and the map is that of the text alone."""
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    _, found = trace(model, batch, ["*.weights"], store="all")
    exact = [path for path in (address.removesuffix(".weights") for address in found) if is_exact(model.get_submodule(path))]
    shapes, scores = list[int](), AttentionInputs.scores

    def counted(inputs: AttentionInputs) -> torch.Tensor:
        s = scores(inputs)
        shapes.append(s.shape[0])
        return s

    wholes = {path: found[f"{path}.weights"] for path in exact}
    monkeypatch.setattr(AttentionInputs, "scores", counted)
    for path, whole in wholes.items():
        for text in range(len(whole)):
            assert torch.allclose(found.map(path, 0, text).tile(), whole[text, 0], rtol=1e-10, atol=1e-12)
    assert set(shapes) == ({1} if exact else set())
