"""While a command imports, the collector stands aside and signals wait; both are back afterwards. No signal is lost."""

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Trained
from transom.cli.gc_imports import gc_frozen_imports
from transom.tasks.signals import SignalExits, defer_signals


def test_the_collector_stands_aside_and_comes_back() -> None:
    with gc_frozen_imports():
        assert not gc.isenabled()
        kept = [object()]
    assert gc.isenabled() and gc.get_freeze_count() > 0 and kept
    with pytest.raises(ImportError), gc_frozen_imports():
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()


@pytest.mark.parametrize("manager", [defer_signals, gc_frozen_imports])
def test_a_signal_waits_for_the_end(manager) -> None:  # type: ignore[no-untyped-def]
    before, done = signal.getsignal(signal.SIGINT), False
    with pytest.raises(KeyboardInterrupt), manager():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done and signal.getsignal(signal.SIGINT) is before
    gc.unfreeze()


def test_threads_import_without_a_word_on_signals() -> None:
    found: list[object] = []

    def imports() -> None:
        with defer_signals():
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=imports)
    thread.start()
    thread.join()
    assert found == [before]


INTERRUPTED = """
import os, sys
from transom.cli.main import main

number = int(sys.argv.pop(1))

class AtNumpy:
    '''Sends the signal when NumPy is looked for, which PyTorch does while it is imported itself.'''

    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, AtNumpy())
code = main()
assert "numpy" in sys.modules, "the command imports no NumPy: the test shows nothing"
sys.exit(code)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (["train", "copy", "--out", "OUT"], signal.SIGINT, 130),  # demo trains likewise
        pytest.param(["tokenizer", "train", "copy", "--out", "OUT"], signal.SIGINT, 130, marks=pytest.mark.long),
        (["translate", "RUN", "ab"], signal.SIGTERM, 143),
    ],
)
def test_a_signal_that_comes_while_pytorch_is_imported_is_not_lost(
    words: list[str], number: int, code: int, trained: Trained, tmp_path: Path
) -> None:
    words = [{"OUT": str(tmp_path / "out"), "RUN": str(trained.folder)}.get(word, word) for word in words]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(int(number)), *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert not (tmp_path / "out").exists()


LOST = """
import gc, os, signal, sys, time, weakref
from transom.cli import recipes
from transom.cli.main import main

number, place = int(sys.argv.pop(1)), sys.argv.pop(1)

class Owner:
    def __del__(self):
        if place == "del":
            os.kill(os.getpid(), number)

def discard():
    owner = Owner()
    reference = weakref.ref(owner, lambda _: os.kill(os.getpid(), number)) if place != "del" else None
    if place == "gc":
        owner.owner = owner
    del owner
    gc.collect()

def wrap():
    try:
        os.kill(os.getpid(), number)
        time.sleep(60)
    except BaseException as error:
        raise ValueError(f"Error building validator: {type(error).__name__}") from error

def packaged_recipes():
    if place == "wrapped":
        wrap()
    discard()
    if place != "end":
        time.sleep(60)
    return {}

recipes.packaged_recipes = packaged_recipes
sys.exit(main(["recipes"]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("place", ["weakref", "del", "gc", "end", "wrapped"])
def test_a_signal_whose_exception_is_discarded_or_wrapped_ends_the_command(place: str, number: int, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", LOST, str(int(number)), place], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (code, "")


def test_an_exception_of_another_kind_is_still_reported() -> None:
    before, told = sys.unraisablehook, list[object]()
    sys.unraisablehook = lambda discarded: told.append(discarded.exc_value)
    try:
        with SignalExits():
            owner = type("Owner", (), {"__del__": lambda self: [][1]})()
            del owner
    finally:
        sys.unraisablehook = before
    assert [type(error) for error in told] == [IndexError]
