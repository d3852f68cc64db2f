"""Run the commands of README.md and docs/guide.md, each page in order in one folder, with trainings made short."""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

import transom
from tests.cli.conftest import TINY, sets, write_pairs
from tests.cli.test_encoders import TINY as TINY_ENCODER
from tests.cli.test_language import TINY as TINY_TEXT
from tests.docs.pages import run_transom
from tests.size import ROOT
from tests.waves import wav
from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.generate import generate_phrasebook

README, GUIDE = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
SHORT = sets(*TINY, "training.max_steps=5")
TEXT, ENCODER = sets(*TINY_TEXT, "training.max_steps=5"), sets(*TINY_ENCODER, "training.max_steps=5")
IMAGES = sets("training.max_steps=4", "training.validate_every=2", "training.checkpoint_every=2", "training.batch_size=8")
SOUNDS = sets("training.max_steps=4", "training.validate_every=2", "training.checkpoint_every=2", "training.batch_size=8")
SHORT_RECIPES = {
    "digits-vit": IMAGES,
    "synthetic-sounds": [*SOUNDS, *sets("data.generate.n_train=90", "data.generate.n_valid=18", "data.generate.n_test=18")],
    "audio-classes": SOUNDS,
    "images": [*IMAGES, *sets("model.image_size=8", "model.d_model=24")],
    "text-bpe": TEXT,
    "python-stdlib": [*TEXT, *sets("data.generate.n_files=20")],
    "text-classes": ENCODER,
    "text-masked": ENCODER,
    "text-pairs": ENCODER,
    "tags": ENCODER,
    **{
        name: [*ENCODER, *sets("data.generate.n_train=200", "data.generate.n_valid=20", "data.generate.n_test=20")]
        for name in ("languages", "sentences", "phrasebook-tags")
    },
    "instructions": TEXT,
    "exercises": [*TEXT, *sets("data.generate.n_train=600", "data.generate.n_valid=60", "data.generate.n_test=60")],
}
TRAINING = ("train", "demo", "find-lr", "sweep")


def blocks(language: str, page: str = README) -> list[str]:
    """Return the page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    """Return the page's ``transom`` commands."""
    return [line for block in blocks("sh", page) for line in block.replace("\\\n", " ").splitlines() if line.startswith("transom ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that holds the files the README speaks of, with made-up sentences, and go there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    monkeypatch.setattr("transom.serving.server.ExploreServer.serve_forever", lambda self: None)
    for folder in (tmp_path, tmp_path / "data" / "multi30k"):
        folder.mkdir(parents=True, exist_ok=True)
        for seed, name in enumerate(("train", "val", "test", "test_2016_flickr")):
            for written, language in zip(write_pairs(folder, 60, seed), ("en", "de"), strict=True):
                written.rename(folder / f"{name}.{language}")
            (folder / f"{name}.fr").write_text((folder / f"{name}.de").read_text())
    (tmp_path / "notes").mkdir()
    for i in range(30):
        (tmp_path / "notes" / f"{i}.md").write_text(f"# Note {i}\nYesterday we saw {i} dogs.\n")
    for name in ("reviews", "test"):
        (tmp_path / f"{name}.tsv").write_text(
            "".join(f"A film {i} to {word}.\t{label}\n" for i in range(20) for word, label in (("remember", 1), ("forget", 0)))
        )
    for name in ("topics", "topics-test"):
        topics = ("space", "sport", "space|sport", "")
        (tmp_path / f"{name}.tsv").write_text("".join(f"A probe {i} lands on the {i % 4}.\t{topics[i % 4]}\n" for i in range(60)))
    for name in ("nli", "nli-test"):
        rows = [f"A man {i} sleeps.\tSomebody {('sleeps', 'runs')[i % 2]}.\t{('yes', 'no')[i % 2]}\n" for i in range(40)]
        (tmp_path / f"{name}.tsv").write_text("premise\thypothesis\tlabel\n" + "".join(rows))
    (tmp_path / "pairs.txt").write_text("A man sleeps.\tSomebody is awake.\n")
    for name in ("train", "test"):
        (tmp_path / f"{name}.conll").write_text("".join(f"Ana\tB-PER\nsees\tO\n{i}\tO\n\n" for i in range(20)))
    for folder in ("photos", "photos-for-testing"):
        for i in range(12):
            (file := tmp_path / folder / ("cat", "dog")[i % 2] / f"{i}.jpg").parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 9), (20 * i, 99, 9)).save(file)
    for name in [f"{folder}/{'ab'[i % 2]}/{i}.wav" for folder in ("sounds", "sounds-for-testing") for i in range(12)] + ["bark.wav"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(wav((n / 900 - len(name) / 99 for n in range(900)), rate=8000))
    for name in ("cat.jpg", "dog.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    (tmp_path / "mine.jsonl").write_text("".join(f'{{"prompt": "What is {i}?", "answer": "A note."}}\n' for i in range(120)))
    (tmp_path / "prompts.txt").write_text("Yesterday we\n# Note\n")
    (edits,) = blocks("json", GUIDE)
    (tmp_path / "edits.json").write_text(edits)
    (tmp_path / "texts.txt").write_text("A film 1 to remember.\nA film 2 to forget.\n")
    (tmp_path / "pairs.csv").write_text("id,english,german\n" + "".join(f"{i},dog {i},Hund {i}\n" for i in range(120)))
    return tmp_path


def shortened(words: list[str]) -> list[str]:
    """Make what trains short."""
    if words[0] not in TRAINING:
        return words
    several = sets("training.checkpoint_every=2") if any("keep_checkpoints" in word for word in words) else []
    return [*words, *SHORT_RECIPES.get(" ".join(words[1:2]), SHORT), *several]


@pytest.mark.long
@pytest.mark.parametrize("page", [README, GUIDE], ids=["README", "guide"])
def test_commands_and_python_run(page: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for command in commands_of(page):
        words = shlex.split(command, comments=True)[1:]
        assert run_transom(shortened(words)) == 0, (command, capfd.readouterr().err)
    if page is GUIDE:
        (here / "my.toml").write_text((here / "my.toml").read_text().replace("max_steps = ", "max_steps = 3 # "))
    else:
        short = transom.train
        monkeypatch.setattr(transom, "train", lambda recipe, out: short(recipe, out, set=SHORT[1::2]), raising=False)
    for block in blocks("python", page):
        exec(compile(block, "page", "exec"), {})


def test_the_guide_shows_every_command_that_trains_or_runs_a_model() -> None:
    assert {shlex.split(command)[1] for command in commands_of(GUIDE)} >= {
        "train",
        "translate",
        "evaluate",
        "score",
        "average",
        "compare",
        "recipes",
        "tokenizer",
        "generate",
        "classify",
        "fill",
        "embed",
        "tag",
        "compare-attention",
        "compare-components",
        "find-lr",
        "sweep",
        "ablate",
        "lens",
    }


def test_each_section_of_the_readme_is_at_most_a_screen() -> None:
    lines = [section.count("\n") for section in re.split(r"^## ", README, flags=re.MULTILINE)]
    assert max(lines) <= 45


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for block in blocks("sh") for word in re.findall(r"^make (\w+)", block, re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.long
def test_the_transcript_is_of_held_out_sentences_and_right() -> None:
    splits = generate_phrasebook(PhrasebookConfig())
    assert splits.test is not None
    held_out = dict(zip(splits.test.source, splits.test.target, strict=True))
    (transcript,) = blocks("text")
    shown = re.findall(r"^  (\S.*)\n    -> (.*)$", transcript, re.MULTILINE)
    assert ("hello world", "hola mundo") in shown and len(shown) >= 5
    assert all(held_out[source] == translation for source, translation in shown)


def test_the_transcript_and_the_picture_are_of_one_recorded_run_of_less_than_three_minutes() -> None:
    record = json.loads((ROOT / "docs" / "demo.json").read_text(encoding="utf-8"))
    (transcript,) = blocks("text")
    assert record["transcript"].startswith(transcript.rstrip()) and record["seconds"] < 180 and record["facts"]["cores"] == 2
    exact = re.search(r"^this model +([\d.]+)%$", record["transcript"], re.MULTILINE)
    assert exact is not None and float(exact[1]) >= 99
    picture = (ROOT / "docs" / "alignment.svg").read_text(encoding="utf-8")
    source, translation = max(re.findall(r"^  (\S.*)\n    -> (.*)$", transcript, re.MULTILINE), key=lambda sample: len(sample[1]))
    shown = re.findall(r"[\w?¿.]+", f"{source} {translation}")
    assert all(word.strip("?¿.") in picture for word in shown)
