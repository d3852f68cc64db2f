"""Plugins: what they register is known once they are named; bad ones, and runs without theirs, are refused in one line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from tests.size import ROOT
from transom.config.plugins import import_plugins, installed_plugins, require_plugins
from transom.errors import ConfigError

HALVED = '''
"""A feed-forward network that halves."""

from typing import Literal

from torch import nn

from transom.config.schema import ComponentConfig
from transom.config.component_registry import register_component, implements
from transom.layers.context import LayerContext


@register_component("feed_forward")
class Halved(ComponentConfig):
    """x W / 2."""

    kind: Literal["halved"] = "halved"


@implements(Halved)
class HalvedLayer(nn.Module):
    def __init__(self, config, d_model, d_ff, dropout):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x, ctx=LayerContext()):
        return self.map(x) / 2
'''
TINY = sets(
    *("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"),
    *("data.generate.n_train=100", "data.generate.n_valid=10", "data.generate.n_test=10", "training.max_steps=4"),
    *("training.validate_every=2", "training.checkpoint_every=2", "model.feed_forward=halved"),
)


def transom_outside(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command line in a process of its own, into which no other plugin was imported."""
    command = [sys.executable, "-m", "transom", *words]
    environment |= {"PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def refused(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the one line of a refusal."""
    assert (done.returncode, done.stdout) == (2, ""), done
    *_, line = done.stderr.strip().splitlines()
    assert line.startswith("error: ") and "Traceback" not in done.stderr
    return line


def error_of(source: str | bytes, transom: Call, folder: Path) -> str:
    """Return how the command line refuses a plugin, which must register nothing: this process goes on."""
    file = folder / "bad.py"
    file.write_bytes(source.encode() if isinstance(source, str) else source)
    return transom("train", "copy", "--plugin", file, "--out", folder / "run").error.replace(str(folder), "FOLDER")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:", "error: plugin FOLDER/bad.py, line 1: SyntaxError: invalid syntax"),
        (b"\x89PNG\r\n\x1a\n\0", "error: plugin FOLDER/bad.py"),
        ("x = 1\n\n1 / 0", "error: plugin FOLDER/bad.py, line 3: ZeroDivisionError: division by zero; fix the plugin"),
        ("import no_such_module", "error: plugin FOLDER/bad.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(0)", "error: plugin FOLDER/bad.py, line 1: SystemExit: 0"),
        ("x = 1", "error: plugin FOLDER/bad.py: expected the file to register a component or task, found none"),
        (HALVED.replace('"halved"', '"swiglu"'), "error: plugin FOLDER/bad.py, line 13: component Halved: kind 'swiglu' of slot"),
        (HALVED.replace('"feed_forward"', '"feed_froward"'), "found 'feed_froward'; did you mean feed_forward?"),
    ],
)
def test_a_bad_plugin_is_refused_in_one_line(source: str | bytes, message: str, transom: Call, tmp_path: Path) -> None:
    assert message in error_of(source, transom, tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nowhere.py", "error: plugin nowhere.py: expected a .py file, found no such file; correct the path"),
        ("./README.md", "error: plugin ./README.md: expected a .py file, found another file; correct the path"),
        (".", "error: plugin .: expected a .py file, an installed plugin or a Python module, found nothing"),
        ("folder.py", "folder.py: expected a file, found a folder"),
        ("no_such.module", "error: plugin no_such.module: expected a .py file, an installed plugin or a Python module, found nothing"),
    ],
)
def test_a_plugin_that_is_not_there_is_refused_in_one_line(
    named: str, message: str, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    assert message in transom("train", "copy", "--plugin", named).error


SCORE = """
from typing import Literal

from transom.config.schema import ComponentConfig
from transom.config.component_registry import register_component, implements


@register_component("score")
class Mine(ComponentConfig):
    kind: Literal["mine"] = "mine"


@implements(Mine)
def build_mine(config, d_head):
    return BUILT
"""
NO_FEED_FORWARD = TINY[:-2]


@pytest.mark.parametrize(
    ("built", "message"),
    [
        pytest.param(
            "None",
            "error: component Mine: expected a score function of queries and keys, found None; return one from the function"
            " that @implements decorates",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "lambda q, k: q.mean(-1, keepdim=True)",
            r"expected scores of shape \(batch, n_heads, query, key\) = \(\d+, 2, \d+, \d+\), found \(\d+, 2, \d+, 1\)",
            marks=pytest.mark.long,
        ),
        pytest.param("lambda q, k: 3.0", r"found float; correct the plugin's score function", marks=pytest.mark.long),
        pytest.param(
            "lambda q, k: 1 / 0",
            r"error: plugin mine\.py, line 15: ZeroDivisionError: division by zero; fix the plugin \(traceback in",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_score_that_fails_is_the_plugins_mistake(built: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORE.replace("BUILT", built))
    command = ["train", "copy", *NO_FEED_FORWARD, "--plugin", "mine.py", "--set", "model.attention.score=mine", "--out", "run"]
    assert re.search(message, refused(transom_outside(tmp_path, *command)))


@pytest.mark.long
def test_a_fault_beside_a_plugin_names_both(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCORE.replace("BUILT", "lambda q: q"))
    command = ["train", "copy", *NO_FEED_FORWARD, "--plugin", "mine.py", "--set", "model.attention.score=mine", "--out", "run"]
    done = transom_outside(tmp_path, *command)
    assert done.returncode == 1 and "this is a bug in transom or plugin mine.py, please report it with" in done.stderr


def test_an_interrupt_of_an_import_remains_one(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        import_plugins([tmp_path / "slow.py"])
    assert not [name for name in sys.modules if name.endswith("_slow")]


@pytest.mark.long
def test_a_run_needs_the_very_plugin_that_it_was_trained_with(tmp_path: Path) -> None:
    plugin = tmp_path / "halved.py"
    plugin.write_text(HALVED)
    unknown = refused(transom_outside(tmp_path, "train", "copy", *TINY, "--out", "run"))
    assert "model.feed_forward: expected one of 'relu', " in unknown and "found 'halved'" in unknown
    command = ["train", "copy", *TINY, "--plugin", "halved.py", "--set", "parallel.data=2", "--out", "run"]
    assert transom_outside(tmp_path, *command).returncode == 0
    (record,) = json.loads((tmp_path / "run" / "config.json").read_text())["plugins"]
    assert record["name"] == "halved.py" and re.fullmatch("[0-9a-f]{64}", record["sha256"])

    missing = refused(transom_outside(tmp_path, "translate", "run", "a b"))
    expected = "run: expected plugin halved.py (SHA-256 [0-9a-f]{12}), found no such plugin; if you trust the file, add --plugin"
    expected += " halved.py with its path"
    assert re.search(expected.replace("(", r"\(").replace(")", r"\)"), missing)
    moved = tmp_path / "moved.py"
    plugin.rename(moved)
    assert transom_outside(tmp_path, "translate", "run", "a b", "--plugin", "moved.py").returncode == 0
    plugin.write_text(f"{HALVED}\n")
    changed = refused(transom_outside(tmp_path, "translate", "run", "a b", "--plugin", "halved.py"))
    assert f"expected plugin halved.py with SHA-256 {record['sha256'][:12]}, with which the run was trained, found SHA-256" in changed
    assert "the plugin has changed" in refused(transom_outside(tmp_path, *command, "--resume"))


@pytest.mark.soak
def test_python_names_plugins_likewise(tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(HALVED)
    script = """
import transom

overrides = OVERRIDES
transom.train("copy", out="run", set=overrides, plugins=["halved.py"])
assert transom.load("run").translate(["a b"]) == transom.load("run", plugins=["halved.py"]).translate(["a b"])
with open("halved.py", "a") as file:
    file.write("#")
try:
    transom.load("run", plugins=["halved.py"])
except transom.errors.ConfigError as error:
    assert "the file changed since this process imported it" in str(error)
else:
    raise AssertionError
"""
    command = [sys.executable, "-c", script.replace("OVERRIDES", repr(TINY[1::2]))]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_workers_find_a_module_that_only_the_first_process_searches_for(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(HALVED)
    (tmp_path / "mine" / "parts.py").write_text(HALVED.replace("halved", "halves").replace("Halved", "Halves"))
    script = """
import os
import transom
from transom.config.plugins import import_plugins

assert {plugin.home for plugin in import_plugins(["mine", "mine.parts"])} == {os.getcwd()}
overrides = [*OVERRIDES, "parallel.data=2", "model.feed_forward=halves"]
assert transom.train("copy", out="run", set=overrides, plugins=["mine.parts"]).step == 4
"""
    command = [sys.executable, "-c", script.replace("OVERRIDES", repr(TINY[1::2]))]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_a_run_that_starts_from_one_with_a_plugin_needs_it_too(tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(HALVED)
    assert transom_outside(tmp_path, "train", "copy", *TINY, "--plugin", "halved.py", "--out", "run").returncode == 0
    tuned = ["train", "copy", *TINY[:-2], "--init-from", "run", "--out", "tuned"]
    assert "expected plugin halved.py" in refused(transom_outside(tmp_path, *tuned))
    assert transom_outside(tmp_path, *tuned, "--plugin", "halved.py").returncode == 0
    assert "plugins" in json.loads((tmp_path / "tuned" / "config.json").read_text())


@pytest.mark.soak
def test_a_worker_that_finds_another_plugin_ends_the_run(tmp_path: Path) -> None:
    appends = "\nfrom pathlib import Path\nwith Path(__file__).open('a') as file:\n    file.write('#')\n"
    (tmp_path / "halved.py").write_text(HALVED + appends)
    command = ["train", "copy", *TINY, "--plugin", "halved.py", "--set", "parallel.data=2", "--out", "run"]
    assert "the plugin has changed" in refused(transom_outside(tmp_path, *command))


@pytest.mark.soak
def test_help_and_modules_know_what_a_named_plugin_registers(tmp_path: Path) -> None:
    """A module is named by its dotted name, and an installed package's plugin by that of its entry point."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "authors.py").write_text((ROOT / "tests" / "tasks" / "outside.py").read_text())
    info = tmp_path / "mine-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[transom.plugins]\nauthors = mine.authors\n")
    assert "--authors" not in transom_outside(tmp_path, "train", "--help").stdout
    for named in ("mine.authors", "authors"):
        assert "--authors" in transom_outside(tmp_path, "train", "--plugin", named, "--help", COLUMNS="160").stdout
        assert "Name the authors that a model knows." in transom_outside(tmp_path, "--help", "--plugin", named, COLUMNS="160").stdout
    (tmp_path / "halved.py").write_text(HALVED)
    told = transom_outside(tmp_path, "train", "--plugin", "halved.py", "--help", COLUMNS="160").stdout
    assert "halved.py: feed_forward = 'halved'. x W / 2." in told
    assert "halved" not in transom_outside(tmp_path, "train", "--help").stdout
    listed = transom_outside(tmp_path, "plugins", "--json")
    assert {"name": "authors", "module": "mine.authors", "package": "mine 1.2"} in json.loads(listed.stdout)
    listed = transom_outside(tmp_path, "plugins")
    assert re.search(r"^authors +mine\.authors +mine 1\.2$", listed.stdout, re.MULTILINE)


def test_listing_plugins_imports_none(transom: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    assert transom("plugins", "--json").json == [each._asdict() for each in installed_plugins()]
    assert not {name for name in set(sys.modules) - before if name.startswith(("torch", "transom_plugin"))}


@pytest.mark.parametrize("plugins", ["x", [{"name": "a.py"}], [{"name": "a.py", "sha256": "0"}], [{"name": "", "sha256": "0" * 64}]])
def test_a_damaged_record_of_plugins_is_refused(plugins: object, transom: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"format_version": 2, "plugins": plugins, "model": {}}))
    assert "config.json: plugins: expected a list of tables with name and sha256, found" in transom("translate", tmp_path, "a").error


def test_nothing_is_required_of_a_run_without_plugins() -> None:
    require_plugins([], "run")
    with pytest.raises(ConfigError, match="plugin nothing"):
        import_plugins(["nothing"])
