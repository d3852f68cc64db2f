"""Files of edits are read with clear errors, and edits take values from texts, files and other runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.decoding.test_translator import folder as folder  # a run of a translator
from tests.decoding.test_translator import translator
from tests.inspection.edits.by_hand import build
from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors, serialize_tensors
from transom.errors import CheckpointError, ConfigError
from transom.inspection.edits.files import EditFileError, load_edits, parse_edits, save_edits
from transom.inspection.edits.schemas import AblateHeads
from transom.inspection.example_batch import build_example_batch
from transom.tasks.load import load

HEAD: dict[str, Any] = {"kind": "ablate-heads", "blocks": [0], "heads": [1]}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({**HEAD, "position": [1]}, "e.json: unknown field edits.0.position; did you mean edits.0.positions?"),
        ({"kind": "ablate-hed"}, "e.json: edits.0.kind: expected a kind of edit, found 'ablate-hed'; the nearest are ablate-heads, "),
        ({"blocks": [1]}, "e.json: edits.0.kind: expected a kind of edit, found None"),
        ("ablate-heads-x", "e.json: edits.0.kind: expected a kind of edit, found 'ablate-heads-x'"),
        ({**HEAD, "blocks": []}, "e.json: edits.0.blocks: expected at least one item, found none"),
        ({**HEAD, "blocks": [-1]}, "e.json: edits.0.blocks: expected a number greater than or equal to 0, found [-1]"),
        ({**HEAD, "value": "zeros"}, "e.json: edits.0.value: expected 'zero', 'mean' or 'resample', found 'zeros'"),
        ({**HEAD, "texts": ["a"]}, "e.json: edits.0: texts: expected reference texts with value = mean or resample, found them with zero"),
        ({"kind": "knock-out-key"}, "e.json: missing field edits.0.keys (positions of the keys to hide, from 0)"),
        ({"kind": "patch", "name": "resid_mid"}, "e.json: edits.0: expected text or file, from which the values are taken, found neither"),
        ({"kind": "patch", "name": "x", "text": "a", "file": "b"}, "found both; give one of them"),
        ({"kind": "patch", "name": "x", "text": "a", "from_positions": [1]}, "found them without positions"),
        ({"kind": "patch", "name": "x", "text": "a", "positions": [0], "from_positions": [1, 2]}, "for each of positions, found 2 for 1"),
        ({"kind": "patch", "name": "x", "file": "b", "run": "r"}, "run: expected a text for the pass of the other run, found a file"),
        ({"kind": "set", "name": "x", "value": "one"}, "e.json: edits.0.value: expected a number or a list, found 'one'"),
        ({"kind": "scale", "name": "x"}, "e.json: missing field edits.0.factor (factor)"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(edit: Any, expected: str) -> None:
    with pytest.raises(EditFileError) as found:
        parse_edits({"version": 1, "edits": [edit]}, "e.json")
    assert expected in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "expected JSON, found a mistake at line 1, column 2; "),
        ("", "expected JSON, found an empty file; "),
        ("\ufeff{}", "expected JSON, found a byte-order mark before it; "),
        ("[]", "expected an object such as {"),
        ('{"edits": [{"kind": "scale", "name": "x", "factor": 1}]}', "missing field version"),
        ('{"version": 2, "edits": [{"kind": "scale", "name": "x", "factor": 1}]}', "version: expected 1, found 2"),
        ('{"version": 1, "edits": []}', "edits: expected at least one item, found none"),
        ('{"version": 1, "edits": 3}', "edits: expected a list, found 3"),
        ('{"version": 1, "edits": [{"kind": "scale", "name": "x", "factor": NaN}]}', "expected JSON, found "),
    ],
)
def test_a_file_that_is_no_file_of_edits(content: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    file.write_text(content)
    with pytest.raises(EditFileError) as found:
        load_edits(file)
    assert str(found.value).startswith(f"{file}: ") and expected in str(found.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EditFileError, match="expected a file of edits, found none that can be read"):
        load_edits(tmp_path / "missing.json")
    with pytest.raises(EditFileError, match="expected a file, found a folder"):
        load_edits(tmp_path)


def test_a_saved_file_is_short_and_gives_the_edits_back(tmp_path: Path) -> None:
    edits = (AblateHeads(blocks=(0,), heads=(2,)), AblateHeads(value="mean", texts=("a", "b")))
    save_edits(tmp_path / "e.json", edits)
    assert json.loads((tmp_path / "e.json").read_text()) == {
        "version": 1,
        "edits": [{"kind": "ablate-heads", "blocks": [0], "heads": [2]}, {"kind": "ablate-heads", "value": "mean", "texts": ["a", "b"]}],
    }
    assert load_edits(tmp_path / "e.json") == edits


@torch.no_grad()
def test_a_patch_takes_values_from_a_traced_file(tmp_path: Path) -> None:
    model, _ = build("gpt")
    one, other = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7, 8]])
    trace = transom.trace(model, other, ["resid_post", "attn.z", "decoder.blocks.0.attn.weights"])[1]
    file = tmp_path / "trace.safetensors"
    file.write_bytes(serialize_tensors({address: x.contiguous() for address, x in trace.items()}))
    with transom.edits(model, [{"kind": "patch", "name": "decoder.blocks.1.resid_post", "file": str(file)}]):
        assert torch.allclose(model(one), model(other), rtol=0, atol=1e-12)
    patch = {"kind": "patch", "name": "decoder.blocks.0.attn.z", "file": str(file), "heads": [2], "positions": [1]}
    with transom.edits(model, [patch]):
        z = transom.trace(model, one, ["attn.z"])[1]["decoder.blocks.0.attn.z"]
    own, theirs = transom.trace(model, one, ["attn.z"])[1]["decoder.blocks.0.attn.z"], read_tensors(file)["decoder.blocks.0.attn.z"]
    own[:, 2, 1] = theirs[:, 2, 1]
    assert torch.equal(z, own)
    for edit, expected in (
        ({**patch, "name": "decoder.blocks.0.ff.hidden", "heads": None}, r"expected the tensor decoder\.blocks\.0\.ff\.hidden, found none"),
        ({**patch, "positions": [3]}, r"positions: expected indices from 0 to 2 of .*trace\.safetensors, found 3"),
        ({**patch, "file": str(tmp_path / "none")}, "expected a file, found none"),
    ):
        with pytest.raises((ConfigError, CheckpointError), match=expected):
            transom.edits(model, [edit])
    wide, _ = build("gpt", d_model=24)
    with pytest.raises(ConfigError, match=r"expected decoder\.blocks\.1\.resid_post of shape \(1, query, 24\), found \(1, 3, 12\)"):
        transom.edits(wide, [{"kind": "patch", "name": "decoder.blocks.1.resid_post", "file": str(file)}])


@torch.no_grad()
def test_values_come_from_a_text_and_from_another_run(folder: Path, tmp_path: Path) -> None:
    run, twin = load(folder, "fp32"), load(folder, "fp32")
    batch, other = (build_example_batch(run, text, None).batch for text in ("abc", "had"))
    edit = {"kind": "patch", "name": "encoder.blocks.0.resid_post", "text": "had"}
    recorded = transom.trace(run, other, ["encoder.blocks.0.resid_post"])[1]["encoder.blocks.0.resid_post"]
    with transom.edits(run, [edit]):
        found = transom.trace(run, batch, ["encoder.blocks.0.resid_post"])[1]["encoder.blocks.0.resid_post"]
    assert torch.equal(found, recorded)
    for parameter in twin.model.parameters():
        parameter.mul_(1.5)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (elsewhere / file.name).write_bytes(file.read_bytes())
    (elsewhere / "model.safetensors").write_bytes(serialize_tensors(twin.model.state_dict()))
    with transom.edits(run, [{**edit, "run": str(elsewhere)}]):
        found = transom.trace(run, batch, ["encoder.blocks.0.resid_post"])[1]["encoder.blocks.0.resid_post"]
    expected = transom.trace(twin, other, ["encoder.blocks.0.resid_post"])[1]["encoder.blocks.0.resid_post"]
    assert torch.equal(found, expected) and not torch.equal(found, recorded)
    (elsewhere / "tokenizer.json").write_bytes((elsewhere / "tokenizer.json").read_bytes() + b" ")
    with pytest.raises(ConfigError, match=r"expected the tokenizer of .*, found another one; choose another run"):
        transom.edits(run, [{**edit, "run": str(elsewhere)}])
    wide = translator(torch.float32, d_ff=20)
    with RunFolder.create(tmp_path / "wide") as made:
        made.write_config(wide.model.config, "0" * 32)
        made.write(TOKENIZER, wide.tokenizers.to_bytes())
        made.write_tensors("model.safetensors", wide.model.state_dict(), step=1)
    with pytest.raises(ConfigError, match="expected a run with the shapes of the edited model, found others"):
        transom.edits(run, [{**edit, "run": str(tmp_path / "wide")}])
