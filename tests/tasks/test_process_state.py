"""Training, loading and predicting restore the state of the process, also after errors."""

import ctypes
import gc
import locale
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transom
from tests.tasks.test_instruction import instructions
from tests.tasks.test_language import recipe as language
from tests.tiers import every
from tests.training.conftest import ANIMALS, changed
from transom.config.recipe import Recipe, dump_recipe, load_recipe
from transom.errors import TransomError
from transom.planning.precision import choose_precision
from transom.training.events import Event, StepFinished

SHORT = ["training.max_steps=2", "training.precision=auto"]
TASKS = ["languages", "language", "instruction", "masked", "classes", "pairs", "tags", "vision"]
VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")


def state() -> dict[str, Any]:
    """Process state that a library could change."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    numpy: Any = np.random.get_state()
    return {
        "random": random.getstate(),
        "numpy": (numpy[1].tolist(), *numpy[2:]),
        "torch": torch.get_rng_state().tolist(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "environment": dict(os.environ),
        "environment of C": [getenv(name.encode()) for name in VARIABLES],
        "type": torch.get_default_dtype(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
        "matrix products": (torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable, logging.getLogger("torch").level),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "hooks": (sys.excepthook, threading.excepthook, sys.stdout, sys.stderr),
        "paths": (list(sys.path), Path.cwd()),
        "locale": locale.setlocale(locale.LC_ALL),
        "running": threading.enumerate(),
    }


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Set two threads, a number that training would change."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@contextmanager
def unchanged() -> Iterator[None]:
    """Check that the state of the process is the same before and after."""
    random.seed(11)
    np.random.seed(12)
    torch.manual_seed(13)
    before = state()
    yield
    now = state()
    assert {name for name in before if now[name] != before[name]} <= {"random"}  # from which the checks of shapes draw; see the last test


def written(recipe: Recipe, folder: Path) -> Path:
    path = folder / "recipe.toml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    return path


def recipe_of(task: str, request: pytest.FixtureRequest, folder: Path) -> Recipe:
    if task == "language":
        (folder / "text").mkdir()
        for i in range(30):
            (folder / "text" / f"{i}.txt").write_text(f"{i} the {ANIMALS[i % 3]} and the {ANIMALS[i * i % 3]}\n")
        return language(folder / "text")
    found: Recipe = instructions(folder) if task == "instruction" else request.getfixturevalue(task)
    return found


def predict(run: Any, images: Path) -> None:
    """Call all prediction methods of a loaded run."""
    texts = ["the dog", "a red cat", "3"]
    match type(run).__name__:
        case "Translator":
            run.translate(["a b", "b a c"], to="2-copy")
            run.score(["a b"], ["a b"], to="2-copy")
        case "Generator":
            run.generate(texts, seed=3)
            run.continuations(texts, 2, batch_rows=1)
            list(run.stream("the dog", early_exit_threshold=0.3))
            run.score(texts)
        case "MaskFiller":
            run.fill(["the [MASK]"])
        case "Classifier":
            run.classify(texts)
        case "Tagger":
            run.tag(texts)
        case "Embedder":
            run.embed(texts)
        case "ImageClassifier":
            run.classify(sorted(images.rglob("*.png"))[:2])
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("task", every(4, TASKS))
def test_a_training_and_what_answers_change_nothing(
    task: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(recipe_of(task, request, tmp_path), tmp_path)
    with unchanged():
        transom.train(path, tmp_path / "run", SHORT)
    chosen = choose_precision("auto", torch.device("cuda" if torch.cuda.is_available() else "cpu")).name
    assert load_recipe(tmp_path / "run" / "recipe.toml")[0].training.precision == chosen
    monkeypatch.setattr("transom.planning.hardware.best_seconds", None)  # no timing decides how a run is loaded
    with unchanged():
        run = transom.load(tmp_path / "run")
    with unchanged():
        predict(run, tmp_path / "photos")


def test_a_training_that_fails_changes_nothing(masked: Recipe, tmp_path: Path) -> None:
    def breaks(event: Event) -> None:
        if isinstance(event, StepFinished):
            assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "4096"  # the settings do hold while it trains
            raise ZeroDivisionError

    path = written(masked, tmp_path)
    with unchanged(), pytest.raises(ZeroDivisionError):
        transom.train(path, tmp_path / "run", SHORT, callbacks=[breaks])
    with unchanged(), pytest.raises(TransomError, match="memory"):
        transom.train(path, tmp_path / "large", [*SHORT, "model.d_model=1000000"])
    with unchanged(), pytest.raises(TransomError, match="holds a run already"):
        transom.train(path, tmp_path / "run", SHORT)


@pytest.mark.long
def test_a_training_of_two_processes_changes_nothing(masked: Recipe, tmp_path: Path) -> None:
    path = written(changed(masked, processes=2), tmp_path)
    with unchanged():
        transom.train(path, tmp_path / "run", SHORT)


ALONE = """
import sys
import transom
from tests.tasks.test_process_state import SHORT, predict, state
path, out = sys.argv[1:]
before = state()
transom.train(path, out, SHORT)
predict(transom.load(out), None)
now = state()
print([name for name in before if now[name] != before[name]])
"""


@pytest.mark.long
def test_nor_does_what_pytorch_imports_meanwhile(masked: Recipe, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE, str(written(masked, tmp_path)), str(tmp_path / "run")]
    alone = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert alone.stdout == "[]\n", alone.stderr
