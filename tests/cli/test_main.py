"""Help is quick and whole, and every way to end has its exit code and at most one line."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.cli.conftest import Call, Trained
from transom.cli import recipes
from transom.cli.commands import all_commands, command_line
from transom.cli.main import one_line
from transom.cli.output import print_result

PYTHON = [sys.executable, "-W", "error"]


def test_help_of_all_commands_imports_no_engine() -> None:
    script = f"""
import contextlib, io, sys
from transom.cli.main import main
for command in ["", *{list(all_commands())}]:
    with contextlib.redirect_stdout(io.StringIO()) as page:
        assert main([command, "--help"] if command else ["--help"]) == 0
    assert "Usage" in page.getvalue() and (not command or "Examples" in page.getvalue()), command
engine = {{"torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "transom.config.schema", "transom.config.recipe"}}
assert not engine & set(sys.modules), set(sys.modules)
"""
    subprocess.run([*PYTHON, "-c", script], check=True, timeout=60)


def test_a_recipe_is_copied_without_pytorch(tmp_path: Path) -> None:
    script = f"import sys; from transom.cli.main import main; assert main(['recipes', 'copy', 'copy', {str(tmp_path / 'my.toml')!r}]) == 0"
    subprocess.run([*PYTHON, "-c", f"{script}; assert 'torch' not in sys.modules"], check=True, timeout=60)


@pytest.mark.parametrize("command", ["", *all_commands()])
def test_help_takes_less_than_half_a_second(command: str) -> None:
    words = [command, "--help"] if command else ["--help"]
    assert any(_seconds(*words) < max(0.5, 2 * _seconds_of_imports()) for _ in range(5)), "0.5 s, or twice the libraries on a slow machine"


@pytest.mark.long
def test_a_sentence_is_translated_in_less_than_three_seconds(trained: Trained) -> None:
    assert _least_seconds("translate", str(trained.folder), "ab ba") < 3.0


def _least_seconds(*arguments: str) -> float:
    """Return the least processor time of three whole processes."""
    return min(_seconds(*arguments) for _ in range(3))


def _seconds_of_imports() -> float:
    """Return the processor time of importing the libraries that a help page needs."""
    before = _processor_seconds_of_children()
    subprocess.run([sys.executable, "-c", "import pydantic.fields, typer.main, typer.rich_utils"], check=True, timeout=60)
    return _processor_seconds_of_children() - before


def _seconds(*arguments: str) -> float:
    """Return the processor time of a whole process, its start included."""
    before = _processor_seconds_of_children()
    subprocess.run([*PYTHON, "-m", "transom", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    return _processor_seconds_of_children() - before


def _processor_seconds_of_children() -> float:
    """Read what a busy machine does not stretch, unlike the clock."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_one_command_does_not_import_another() -> None:
    script = "import sys; from transom.cli.main import main; main(['recipes', '--json']); print(*sorted(sys.modules))"
    done = subprocess.run([*PYTHON, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert "transom.cli.recipes" in done.stdout
    assert "transom.cli.train" not in done.stdout.split()


def test_help_lists_every_command_and_its_line(transom: Call) -> None:
    for outcome in (transom("--help"), transom()):
        page = " ".join(re.sub("[│╭╮╰╯─]", " ", outcome.out).split())
        assert outcome.code == 0
        for command in all_commands().values():
            assert f"{command.name} {command.help}" in page


def test_no_help_text_has_brackets_that_are_read_as_a_style() -> None:
    group = command_line()
    context = typer.Context(group)
    for name in all_commands():
        command = group.get_command(context, name)
        for each in (command, *getattr(command, "commands", {}).values()):
            helps = [parameter.help for parameter in each.params if getattr(parameter, "help", None)]
            assert not [text for text in helps if re.search(r"(?<!\\)\[[a-z]", text)], name


def test_a_flag_shows_no_value(transom: Call) -> None:
    for words in ([], ["train"], ["recipes"], ["recipes", "copy"], ["tokenizer", "train"]):
        assert "bool" not in transom(*words, "--help").out, words


def test_recipes_are_listed_in_columns_by_a_sentence_each(transom: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    about = transom("recipes", "--json").json
    listed = transom("recipes").out.splitlines()
    assert [re.split("  +", line) for line in listed] == [[name, line] for name, line in about.items()]
    assert all(line.endswith(".") for line in about.values())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    narrow = transom("recipes").out.splitlines()
    assert max(map(len, narrow)) <= 60 and len(narrow) > len(listed)
    assert [line.split()[0] for line in narrow if not line.startswith(" ")] == list(about)


def test_a_command_leaves_the_handling_of_sigterm_as_it_was(transom: Call) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert transom("--version").code == 0
    assert signal.getsignal(signal.SIGTERM) == before == signal.SIG_DFL


def test_version(transom: Call) -> None:
    assert transom("--version").out.startswith("transom 0.")


@pytest.mark.parametrize("command", all_commands())
def test_every_command_offers_json(command: str, transom: Call) -> None:
    subcommands = {"tokenizer": ["train", "show"], "recipes": ["list", "show", "copy", "presets"], "lens": ["rollout", "flow"]}
    for words in [[command, subcommand] for subcommand in subcommands.get(command, [])] or [[command]]:
        assert "--json" in transom(*words, "--help").out, words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "error: expected a command, found 'trian'; did you mean train or trace?"),
        (["--versoin"], "error: no such option: --versoin; did you mean --version? see transom --help"),
        (["train"], "error: expected NAME_OR_FILE, or --resume with --out RUN, found neither"),
        (["train", "copy", "--resum"], "error: no such option: --resum; did you mean --resume? see transom train --help"),
        (["train", "copi"], "error: expected a packaged recipe or the path of a .toml file, found 'copi'; did you mean copy?"),
        (["train", "translation"], "name your own files with --source and --target"),
        (["train", "translation", "--source", "a"], "error: --source requires --target"),
        (["train", "images"], "name your own files with --images"),
        (
            ["train", "translation", "--text", "a"],
            "error: translation trains on --source and --target (or --pairs), found --text; give --source and --target",
        ),
        (["train", "copy", "--text", "a", "--set", "task=language", "--images", "b"], "files of one kind, found --text and --images"),
        (["tokenizer", "train", "text-bpe", "--source", "a", "--target", "b", "--out", "t"], "text-bpe trains on --text, found --source"),
        (["train", "copy", "--set", "training.max_step=3"], "--set training.max_step=3: unknown field training.max_step; did you mean"),
        (["train", "copy", "--seeds", "0"], "see transom train --help"),
        (["train", "copy", "--seeds", "100000000000"], "see transom train --help"),
        (["compare-components", "copy", "--seeds", "1001", "--with", "model.norm=rmsnorm"], "see transom compare-components --help"),
        (["recipes", "sho"], "error: no such command 'sho'; did you mean 'show'? see transom recipes --help"),
        (["recipes", "copy", "copy"], "error: missing argument 'FILE'; see transom recipes copy --help"),
        (["translate", "nowhere", "x"], "error: nowhere: expected a run folder"),
        (["translate", "x", "a", "--input", "b"], "error: expected SENTENCE or --input, found both; remove one"),
        (["tokenizer", "show", "nowhere.json"], "error: nowhere.json"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: list[str], message: str, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in transom(*arguments).error
    assert not list(tmp_path.iterdir()), "nothing is left behind"


HOSTILE = "a\nb\r\tc\x1b[2J\x00\x7f\x85\x9b\u2028\u202e\u2066\u200f\ud800\udcff d\xa0é 中"


def test_an_error_is_one_line_of_printable_characters(transom: Call) -> None:
    error = transom("translate", HOSTILE.replace("\x00", "").replace("\ud800", ""), "x").error
    assert error.isprintable() and "é 中" in error and r"a\nb\r\tc\x1b[2J\x7f\x85\x9b\u2028\u202e\u2066\u200f\udcff d\xa0" in error
    spelled = one_line(HOSTILE)
    assert spelled.isprintable() and r"\x00" in spelled and r"\ud800\udcff" in spelled


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "n" * 3000, "x"],
        ["train", "copy", "--set", "training." + "x" * 90_000 + "=1"],
        ["train", "copy", "--set", "training.seed=" + "x" * 90_000],
        ["train", "\x1b" * 3000],
        ["recipes", "show", "x" * 3000],
        ["tokenizer", "show", "x" * 3000],
        ["--" + "x" * 3000],
        ["\n" * 3000],
    ],
)
def test_an_error_has_at_most_500_characters(arguments: list[str], transom: Call) -> None:
    error = transom(*arguments).error
    assert len(error) <= 500 and error.isprintable()


def test_a_long_error_keeps_its_advice(transom: Call) -> None:
    error = transom("train", "\x1b" * 3000 + "x" * 3000 + ".toml").error
    assert len(error) == 500 and " ... " in error and error.endswith("(file name too long)")
    error = transom("translate", "nowhere", "x", "--precision", "x" * 3000).error
    assert error.startswith("error: invalid value for '--precision'") and error.endswith("see transom translate --help")


def test_a_fault_of_ours_saves_its_traceback(transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, str]:
        raise KeyError("two\nlines")

    monkeypatch.setattr(recipes, "packaged_recipes", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = transom("recipes", "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("internal error: KeyError")
    (saved,) = tmp_path.iterdir()
    assert str(saved) in outcome.err
    assert "transom recipes --json" in saved.read_text()
    assert "Traceback (most recent call last)" in saved.read_text()


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen([*PYTHON, "-m", "transom", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_numbers_that_are_not_finite_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"loss": float("nan"), "all": [1.5, float("inf")]}, True, [])
    assert capsys.readouterr().out == '{"loss": null, "all": [1.5, null]}\n'


@pytest.mark.parametrize("words", [["recipes"], ["recipes", "--json"]])
def test_an_answer_that_finds_no_room_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PYTHON, "-m", "transom", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "error: cannot read or write standard output: No space left on device; choose another path\n"


def test_closed_streams_hold_nothing() -> None:
    """A shell closes them with <&- >&- 2>&-."""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f'"$0" -m transom recipes show nothing {closed}', sys.executable], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stdout == "" and done.stderr.count("error:") == ("2>&-" not in closed)


def test_output_is_utf8_in_any_locale(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ["recipes", "copy", "copy", str(tmp_path / "señal.toml")]
    done = subprocess.run([*PYTHON, "-m", "transom", *words], capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "señal.toml" in done.stdout.decode()


@pytest.mark.parametrize("words", [["translate", "x" * 300, "a"], ["train", "x" * 300], ["tokenizer", "show", "x" * 300]])
def test_names_that_are_too_long(words: list[str], transom: Call) -> None:
    assert "too long" in transom(*words).error


@pytest.mark.parametrize(
    "fault", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 640000000000 bytes")]
)
def test_too_little_memory_is_no_fault_of_ours(fault: Exception, transom: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> dict[str, str]:
        raise fault

    monkeypatch.setattr(recipes, "packaged_recipes", full)
    assert "expected enough memory" in transom("recipes").error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_waiting_for_input(number: signal.Signals, code: int, trained: Trained) -> None:
    reads, writes = os.pipe()  # never written to: the command waits
    terminal, its_end = os.openpty()
    os.close(reads), os.close(writes)
    command = [*PYTHON, "-m", "transom", "translate", str(trained.folder)]
    with subprocess.Popen(command, stdin=its_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "type sentences, one per line; /help explains, /exit or Ctrl-D ends\n"
        process.send_signal(number)
        assert process.stderr.read().strip() in ("", ">")  # the prompt, if it was written before the signal
    os.close(terminal), os.close(its_end)
    assert process.returncode == code
