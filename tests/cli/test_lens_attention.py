"""``transom lens rollout`` and ``flow``, ``transom heads`` and ``transom align-error``, on tiny trained runs."""

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import TINY, Call, Trained, sets
from tests.cli.test_encoders import classifying, labelled
from tests.cli.test_images import photos, seeing
from tests.cli.test_language import LanguageRun, spoken
from transom.inspection.example_batch import build_example_batch
from transom.inspection.lenses.head_roles import head_scores
from transom.inspection.lenses.head_statistics import head_statistics
from transom.inspection.lenses.rollout import attention_flow, attention_rollout, patch_shares
from transom.tasks.load import load

__all__ = ["classifying", "labelled", "photos", "seeing", "spoken"]


def test_shares_are_those_of_python(transom: Call, trained: Trained, spoken: LanguageRun) -> None:
    run = load(trained.folder, "fp32")
    batch = build_example_batch(run, "ab ba", None).batch
    for command, compute in (("rollout", attention_rollout), ("flow", attention_flow)):
        found = transom("lens", command, trained.folder, "ab ba", "--json").json
        expected = compute(run, batch)
        assert expected.source is not None and expected.target is not None
        assert torch.allclose(torch.tensor(found["source"]), expected.source[0].float()) and found["tokens"] == expected.tokens
        assert torch.allclose(torch.tensor(found["target"]), expected.target[0].float())
        one = transom("lens", command, trained.folder, "ab ba", "--position", "0", "--json").json
        assert one["positions"] == [0] and one["source"] == [pytest.approx(found["source"][0])]
    lines = transom("lens", "rollout", spoken.folder, "the sun").out.splitlines()
    assert lines[0].split() == ["position", "token", "largest"] and lines[1].split() == [
        "0",
        "[EOS]",
        "[EOS]",
        "1.000",
        *lines[1].split()[4:],
    ]
    assert all(len(line) <= 100 for line in lines)


def test_shares_of_patches_are_a_grid(transom: Call, seeing: Path, photos: Path) -> None:
    file = photos / "dark" / "0.jpg"
    run = load(seeing, "fp32")
    shares = patch_shares(run.model.config, attention_rollout(run, build_example_batch(run, None, file).batch))[0]
    assert torch.allclose(torch.tensor(transom("lens", "rollout", seeing, "--input", file, "--json").json["patches"]), shares.float())
    title, *grid = transom("lens", "flow", seeing, "--input", file).out.splitlines()
    assert title.startswith("maximum flow of each patch in percent") and len(grid) == run.model.config.grid == len(grid[0].split())
    assert "--position: expected none for an image" in transom("lens", "rollout", seeing, "--input", file, "--position", "2").error


def test_heads_of_a_text_of_lines_and_of_validation_data(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    run = load(spoken.folder, "fp32")
    report = head_statistics(run, [build_example_batch(run, "the sun of 3", None).batch])
    found = transom("heads", spoken.folder, "the sun of 3", "--json").json
    for record, each, scores in zip(found["heads"], report.heads, head_scores(run, report.heads), strict=True):
        assert (record["address"], record["head"], record["roles"]) == (each.address, each.head, list(scores.roles))
        assert record["entropy"] == pytest.approx(each.entropy, rel=1e-5) and record["copying"] == pytest.approx(scores.copying, abs=1e-5)
    assert torch.allclose(torch.tensor(found["similarity"]), report.similarity.float(), atol=1e-5)
    lines = tmp_path / "lines.txt"
    lines.write_text("the sun of 3\n\nthe moon\nthe star\n")
    counts = [
        transom("heads", spoken.folder, "--input", lines, *more, "--json").json["heads"][0]["n_queries"] for more in ((), ("--texts", "1"))
    ]
    assert counts[1] == found["heads"][0]["n_queries"] < counts[0]
    table = transom("heads", spoken.folder, "--texts", "3").out.splitlines()
    assert table[1].split() == ["head", "entropy", "share", "dist", "prev", "pos", "delim", "ind", "dup", "copy", "roles"]
    assert sum(line.startswith("decoder.blocks.") for line in table[2:]) >= len(found["heads"])


def test_heads_of_images_and_of_a_classifier(transom: Call, seeing: Path, photos: Path, classifying: Path) -> None:
    for images in (("--input", photos / "dark" / "0.jpg"), ("--texts", "2")):
        table = transom("heads", seeing, *images).out.splitlines()
        assert "distance in pixels" in table[0] and table[1].split() == ["head", "entropy", "share", "dist", "pos", "roles"]
    assert transom("heads", classifying, "a cat of 3").code == 0
    assert "expected TEXT or --input, found both; remove one" in transom("heads", classifying, "a cat", "--input", "x").error


def test_only_runs_of_the_phrasebook_have_word_links(transom: Call, trained: Trained, spoken: LanguageRun) -> None:
    assert "expected a run of the phrasebook, whose grammar has word links" in transom("align-error", trained.folder).error
    assert "expected a run" in transom("align-error", spoken.folder).error


@pytest.mark.long
def test_alignment_errors_of_a_phrasebook_run(transom: Call, tmp_path: Path) -> None:
    sizes = ("data.generate.n_train=300", "data.generate.n_valid=20", "data.generate.n_test=30", "training.max_steps=3")
    tiny = [each for each in TINY if not each.startswith(("tokenizer.joint", "training.validate_bleu"))]
    assert transom("train", "phrasebook", *sets(*tiny, *sizes, "data.generate.kind=phrasebook"), "--out", tmp_path / "run").code == 0
    found = transom("align-error", tmp_path / "run", "--pairs", "30", "--json").json
    assert found["pairs"] == 30
    names = [(each["address"], each["head"]) for each in found["alignments"]]
    assert names == [
        ("decoder.blocks.0.cross", 0),
        ("decoder.blocks.0.cross", 1),
        ("decoder.blocks.0.cross", None),
        ("", None),
        ("diagonal", None),
    ]
    assert all(0 <= each["aer"] <= 1 for each in found["alignments"]) and found["alignments"][-1]["aer"] < 0.5
    table = transom("align-error", tmp_path / "run", "--pairs", "5", "--part", "valid").out.splitlines()
    assert len(table) == 6 and sum(line.endswith("best") for line in table) >= 1
    assert (
        "pairs: expected at most 30, the test pairs of the run, found 31" in transom("align-error", tmp_path / "run", "--pairs", "31").error
    )
