"""A run's folder: made, taken over, refused; never anybody else's file touched."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.checkpoints.checking import names, one_line
from tests.models.tiny import seq2seq
from transom.checkpoints.run_files import LOCK, contains_run
from transom.checkpoints.run_folder import RunFolder
from transom.errors import CheckpointError, ConfigError, DiskError
from transom.models.build import build_model
from transom.planning import parameters

ROOT = Path(__file__).parents[2]
ID = "0123456789abcdef" * 2


def begun(path: Path) -> Path:
    """Make a run's folder with one of everything."""
    with RunFolder.create(path) as run:
        run.write("recipe.toml", b"task = 'translation'\n")
        run.write_config(seq2seq(), ID)
        run.write("tokenizer.json", b"{}")
        run.write_tensors("model.safetensors", build_model(seq2seq()).state_dict(), step=1)
        run.metrics.append({"step": 1, "loss": 2.0})
        run.write("report.html", b"<html>")
        run.write("README.md", b"# card")
        run.checkpoints.save(1, {"model": {"w": torch.ones(1)}}, {})
    return path


def test_the_model_comes_back(tmp_path):
    torch.manual_seed(1)
    model = build_model(seq2seq(tie_embeddings="decoder"))
    with RunFolder.create(tmp_path / "runs" / "a") as run:
        run.write_config(seq2seq(tie_embeddings="decoder"), ID)
        run.write_tensors("model.safetensors", model.state_dict(), step=1)
        run.write("tokenizer.json", lambda: b"{}")
    run = RunFolder.open(tmp_path / "runs" / "a")
    assert run.load_config() == seq2seq(tie_embeddings="decoder")
    other = build_model(run.load_config())
    run.load_weights(other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert run.read("tokenizer.json") == b"{}"


def test_a_run_has_the_documented_files(tmp_path):
    path = begun(tmp_path / "a")
    files = {"recipe.toml", "config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "report.html", "README.md"}
    assert names(path) == files | {"checkpoints", LOCK}
    assert json.loads((path / "config.json").read_text())["format_version"] == 3


def test_a_run_that_comes_to_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), RunFolder.create(tmp_path / "made"):
        raise ZeroDivisionError
    assert not (tmp_path / "made").exists()
    (tmp_path / "was-there").mkdir()
    RunFolder.create(tmp_path / "was-there").close()
    assert (tmp_path / "was-there").is_dir()
    with RunFolder.create(tmp_path / "written") as run:
        run.metrics.append({"step": 1})
    assert (tmp_path / "written").is_dir()


def test_a_run_is_not_overwritten_unasked(tmp_path):
    path = begun(tmp_path / "a")
    before = {name: (path / name).read_bytes() for name in names(path) - {"checkpoints", LOCK}}
    with pytest.raises(ConfigError) as error:
        RunFolder.create(path)
    one_line(error, "holds a run already (newest checkpoint: step 1)", "--resume", "--out")
    assert before == {name: (path / name).read_bytes() for name in before}
    RunFolder.create(path, resume=True).close()
    assert before == {name: (path / name).read_bytes() for name in before}


def test_a_confirmed_overwrite_removes_the_run_and_nothing_else(tmp_path):
    path = begun(tmp_path / "a")
    (path / "notes.txt").write_text("mine")
    (path / "samples").mkdir()
    RunFolder.open(path).access_log.record(path / "notes.txt", "evaluate")
    (path / "report.html").unlink()
    (path / "report.html").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("mine")
    RunFolder.create(path, overwrite=True).close()
    assert names(path) == {"notes.txt", "samples", "ledger.jsonl", LOCK}
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert not contains_run(path)


def test_resume_where_nothing_is_starts_anew(tmp_path):
    with RunFolder.create(tmp_path / "new", resume=True) as run:
        assert run.checkpoints.latest() is None
    assert not contains_run(tmp_path / "new")
    RunFolder.create(tmp_path / "new").close()


def test_an_empty_folder_will_do(tmp_path):
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty").close()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("foreign", ["notes.txt", "recipe.toml", "model.safetensors", "config.json", "checkpoints/step-1/state.json"])
def test_a_folder_that_is_not_a_runs_is_refused_untouched(tmp_path, foreign, resume, overwrite):
    """A recipe of one's own, or another library's model, must never be taken for a run."""
    path = tmp_path / "mine" / foreign
    path.parent.mkdir(parents=True)
    path.write_text('{"model_type": "marian", "d_model": 512}')
    with pytest.raises(ConfigError) as error:
        RunFolder.create(tmp_path / "mine", resume=resume, overwrite=overwrite)
    one_line(error, "expected an empty folder or a run folder, found the file", foreign.split("/")[0], "--out")
    assert path.read_text() == '{"model_type": "marian", "d_model": 512}'
    assert names(tmp_path / "mine") == {foreign.split("/")[0]}


def test_a_run_copied_without_its_hidden_files_is_still_one(tmp_path):
    path = begun(tmp_path / "a")
    (path / LOCK).unlink()
    assert contains_run(path)
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(path)
    RunFolder.create(path, resume=True).close()


def test_a_file_in_the_folders_place(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(DiskError) as error:
        RunFolder.create(tmp_path / "a")
    one_line(error, "found a file where this path needs a folder")
    with pytest.raises(DiskError):
        RunFolder.create(tmp_path / "a" / "b")
    with pytest.raises(CheckpointError, match="found a file"):
        RunFolder.open(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"


def test_what_is_no_run_cannot_be_opened(tmp_path):
    with pytest.raises(CheckpointError, match="found nothing"):
        RunFolder.open(tmp_path / "missing")
    with pytest.raises(CheckpointError, match=r"expected a run folder with config\.json, found none"):
        RunFolder.open(tmp_path)


def test_two_trainings_cannot_share_a_folder(tmp_path):
    first = RunFolder.create(tmp_path / "a")
    for arguments in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(ConfigError) as error:
            RunFolder.create(tmp_path / "a", **arguments)
        one_line(error, "another training run is writing to this folder", "process ", "--out")
    RunFolder.create(tmp_path / "b").close()
    first.close()
    first.close()
    RunFolder.create(tmp_path / "a").close()


HOLDER = """
import sys
from pathlib import Path
from transom.checkpoints.run_folder import RunFolder
run = RunFolder.create(Path("a"))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_a_killed_training_frees_its_folder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"process {process.pid} on"):
            RunFolder.create(tmp_path / "a")
        process.kill()
    RunFolder.create(tmp_path / "a").close()


def test_a_refused_folder_is_not_locked(tmp_path):
    path = begun(tmp_path / "a")
    with pytest.raises(ConfigError, match="holds a run"):
        RunFolder.create(path)
    RunFolder.create(path, resume=True).close()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    path = begun(tmp_path / "a")
    (tmp_path / "elsewhere").write_text("mine")
    (path / LOCK).unlink()
    (path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError):
        RunFolder.create(path, resume=True)
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_leftovers_go_at_the_next_start(tmp_path):
    path = begun(tmp_path / "a")
    (path / "model.safetensors.partial-0123abcd").write_text("half")
    (path / "checkpoints" / "step-2.partial-0123abcd").mkdir()
    RunFolder.create(path, resume=True).close()
    assert not list(path.rglob("*.partial-*"))


def test_a_resumed_run_keeps_its_model(tmp_path):
    path = begun(tmp_path / "a")
    with RunFolder.create(path, resume=True) as run:
        run.write_config(seq2seq(), ID)
        with pytest.raises(ConfigError) as error:
            run.write_config(seq2seq(d_ff=16), ID)
        one_line(error, "config.json: expected model.d_ff = 12 as in this run, found 16 in the recipe", "give another --out")
        assert run.load_config() == seq2seq()


def put_config(path: Path, model: object, **others: object) -> None:
    (path / "config.json").write_text(json.dumps({"format_version": 1, "model": model} | others))


def test_a_config_that_does_not_fit_the_schema_is_named(tmp_path):
    path = begun(tmp_path / "a")
    good = seq2seq().model_dump(mode="json")
    for model, words in [
        (good | {"d_model": "wide"}, "model.d_model: expected a value that transom writes, found 'wide' (Input should be a valid integer"),
        (good | {"colour": "red"}, "model.colour: expected a value that transom writes, found 'red' (Extra inputs are not permitted)"),
        (good | {"norm": {"kind": "os.system"}}, "model.norm.kind: expected a value that transom writes, found {'kind': 'os.system'}"),
        (
            good | {"d_model": -1},
            "model.d_model: expected a value that transom writes, found -1 (Input should be greater than or equal to",
        ),
        (None, "model: "),
        ([], "model: "),
        ("x" * 10**5, "model"),
    ]:
        put_config(path, model)
        with pytest.raises(CheckpointError) as error:
            RunFolder.open(path).load_config()
        one_line(error, "config.json: ", words, "expected a value that transom writes")
        assert len(str(error.value)) < 700


def test_a_config_of_a_newer_transom_says_so(tmp_path):
    path = begun(tmp_path / "a")
    put_config(path, seq2seq().model_dump(mode="json"), format_version=4)
    with pytest.raises(CheckpointError, match="expected format_version 1 to 3, found 4"):
        RunFolder.open(path).load_config()


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 2**40, "n_heads": 2**38},
        {"n_encoder_layers": 10**12},
        {"n_decoder_layers": 10**300},
        {"d_ff": 10**15},
        {"source_vocab_size": 10**15, "target_vocab_size": 10**15},
        {"n_heads": 10**12, "d_head": 10**12},
        {"max_seq_len": 10**12},
        {"d_ff": 13},
        {"source_vocab_size": None, "target_vocab_size": None},
    ],
    ids=str,
)
def test_no_model_is_built_that_is_larger_than_its_weights(tmp_path, changes):
    """If any of these were built, the test would die or never end."""
    path = begun(tmp_path / "a")
    put_config(path, seq2seq().model_dump(mode="json") | changes)
    with pytest.raises(CheckpointError) as error:
        RunFolder.open(path).load_config()
    one_line(error, "expected")


@pytest.mark.parametrize("position", ["sinusoidal", "rotary"])
def test_no_table_of_positions_is_built_that_the_weights_do_not_justify(tmp_path, position, monkeypatch):
    monkeypatch.setattr(parameters, "MIN_POSITION_TABLE_LIMIT", 4096)
    path = begun(tmp_path / "a")
    fitting = seq2seq(position=position).model_dump(mode="json")
    most = 4096 // seq2seq(position=position).position_table * 8
    put_config(path, fitting | {"max_seq_len": most})
    assert RunFolder.open(path).load_config().max_seq_len == most
    put_config(path, fitting | {"max_seq_len": most + 1})
    with pytest.raises(CheckpointError) as error:
        RunFolder.open(path).load_config()
    one_line(error, "config.json: model.max_seq_len: expected", "at most 4,096 numbers for a model of this size", f"found {most + 1:,}")
    monkeypatch.setattr(parameters, "MIN_POSITION_TABLE_LIMIT", 0)
    put_config(path, fitting)
    assert RunFolder.open(path).load_config() == seq2seq(position=position), "its weights are more"


def test_no_model_is_built_without_its_weights(tmp_path):
    path = begun(tmp_path / "a")
    put_config(path, seq2seq(d_ff=10**12).model_dump(mode="json"))
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors, found none"):
        RunFolder.open(path).load_config()


def test_a_huge_or_special_config_is_not_read(tmp_path):
    path = begun(tmp_path / "a")
    with (path / "config.json").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match="expected at most 1,048,576 bytes"):
        RunFolder.open(path).load_config()
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="found a device or a pipe"):
        RunFolder.open(path).load_config()


def test_links_that_lead_out_are_not_followed(tmp_path):
    path = begun(tmp_path / "a")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (path / name).rename(tmp_path / name)
        (path / name).symlink_to(tmp_path / name)
    run = RunFolder.open(path)
    for load in (run.load_config, lambda: run.read("tokenizer.json"), lambda: run.load_weights(build_model(seq2seq()))):
        with pytest.raises(CheckpointError, match="expected a file inside its folder, found a symbolic link"):
            load()
    with pytest.raises(DiskError, match="found a symbolic link with that name"):
        run.write("tokenizer.json", b"new")
    assert (tmp_path / "tokenizer.json").read_bytes() == b"{}"


def test_links_within_the_folder_are_followed(tmp_path):
    path = begun(tmp_path / "a")
    (path / "model.safetensors").rename(path / "weights-1")
    (path / "model.safetensors").symlink_to("weights-1")
    (tmp_path / "b").symlink_to(path)
    run = RunFolder.open(tmp_path / "b")
    run.load_weights(build_model(run.load_config()))


def test_weights_that_are_not_there_yet(tmp_path):
    with RunFolder.create(tmp_path / "a") as run:
        run.write_config(seq2seq(), ID)
        with pytest.raises(CheckpointError, match=r"expected model\.safetensors, found none, since the run has no validation yet"):
            run.load_weights(build_model(run.load_config()))


def test_damaged_weights_are_found_without_a_manifest(tmp_path):
    path = begun(tmp_path / "a") / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(data)
    run = RunFolder.open(path.parent)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
        run.load_weights(build_model(run.load_config()))


def test_a_full_disk_keeps_the_weights_of_before(tmp_path, limited_files):
    path = begun(tmp_path / "a")
    before = hashlib.sha256((path / "model.safetensors").read_bytes()).digest()
    with RunFolder.create(path, resume=True) as run, limited_files(1000), pytest.raises(DiskError) as error:
        run.write_tensors("model.safetensors", build_model(seq2seq()).state_dict(), step=1)
    one_line(error, "model.safetensors", "existing files are unchanged")
    assert hashlib.sha256((path / "model.safetensors").read_bytes()).digest() == before


def test_every_read_of_a_test_file_is_in_the_ledger(tmp_path):
    run = RunFolder.open(begun(tmp_path / "a"))
    test = tmp_path / "test.en"
    test.write_bytes(b"A man sleeps.\n")
    assert run.access_log.read() == []
    run.access_log.record(test, "evaluate")
    run.access_log.record(test, "compare")
    first, second = run.access_log.read()
    assert (first["file"], first["command"], second["command"]) == (str(test), "evaluate", "compare")
    assert first["sha256"] == hashlib.sha256(b"A man sleeps.\n").hexdigest()
    assert first["date"].endswith("+00:00")


def test_a_test_file_that_never_ends_is_refused(tmp_path):
    run = RunFolder.open(begun(tmp_path / "a"))
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(CheckpointError, match="found a device or a pipe"):
            run.access_log.record(path, "evaluate")
    assert run.access_log.read() == []


def test_a_folder_of_test_files_may_hold_any_name(tmp_path):
    run = RunFolder.open(begun(tmp_path / "a"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "odd\udcff.png").write_bytes(b"x")
    run.access_log.record(tmp_path / "images", "classify")
    assert len(run.access_log.read()[0]["sha256"]) == 64


def test_a_torn_ledger_is_still_read(tmp_path):
    run = RunFolder.open(begun(tmp_path / "a"))
    (tmp_path / "test.en").write_bytes(b"x")
    run.access_log.path.write_text('{"date": "20')
    run.access_log.record(tmp_path / "test.en", "evaluate")
    assert [entry["command"] for entry in run.access_log.read()] == ["evaluate"]


def test_a_read_that_cannot_be_noted_is_an_error(tmp_path, limited_files):
    run = RunFolder.open(begun(tmp_path / "a"))
    (tmp_path / "test.en").write_bytes(b"x")
    with limited_files(10), pytest.raises(DiskError, match=r"ledger\.jsonl"):
        run.access_log.record(tmp_path / "test.en", "evaluate")
    with pytest.raises(CheckpointError, match="cannot be read"):
        run.access_log.record(tmp_path / "missing.en", "evaluate")
    assert run.access_log.read() == []
