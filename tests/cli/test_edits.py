"""``--edit`` changes what commands compute, and ``transom ablate`` measures the effect of many single edits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transom as package
from tests.cli.conftest import Call, Trained
from tests.cli.test_encoders import classifying, filling, labelled
from tests.cli.test_images import photos, seeing
from tests.cli.test_instructions import asked, instruction_tuned
from tests.cli.test_language import LanguageRun, spoken
from tests.cli.test_tag import tagged, tagging
from tests.kernels.test_native_decoder import needs_library
from transom.cli.edits import EXAMPLE
from transom.data.tokenizer.special_tokens import EOS, SOS
from transom.inspection.edits.answers import ask
from transom.inspection.edits.files import load_edits
from transom.inspection.edits.scope import edits
from transom.tasks.load import load

__all__ = ["asked", "classifying", "filling", "instruction_tuned", "labelled", "photos", "seeing", "spoken", "tagged", "tagging"]

Write = Callable[..., Path]
CROSS = {"kind": "ablate-heads", "part": "cross", "heads": [0]}
FIRST = {"kind": "scale", "name": "resid_post", "factor": -2, "positions": [0]}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Give a function that writes a file of edits."""

    def write_edits(*chosen: dict[str, Any]) -> Path:
        file = tmp_path / f"edits-{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps({"version": 1, "edits": chosen}))
        return file

    return write_edits


def test_a_translation_of_an_edited_model_is_that_of_python(transom: Call, trained: Trained, write: Write) -> None:
    file, other = write(CROSS), write({"kind": "set", "name": "decoder.blocks.0.ff.hidden", "value": 1})
    found = transom("translate", trained.folder, "ab ba", "--edit", file, "--edit", other, "--precision", "fp32", "--json")
    run = load(trained.folder, "fp32")
    with edits(run, file), edits(run, other):
        expected = run.n_best(["ab ba"], 1)[0][0]
    (record,) = found.json
    assert record["translations"][0]["log_p"] == pytest.approx(expected.log_p, abs=1e-5)
    assert record["translations"][0]["log_p"] != pytest.approx(run.n_best(["ab ba"], 1)[0][0].log_p, abs=1e-5)
    told = found.err.splitlines()
    assert told[:3] == [
        f"{file}: ablate-heads, part cross, heads 0",
        f"{other}: set, name decoder.blocks.0.ff.hidden, value 1.0",
        "edited models decode without a cache: every step reads the whole text, since the fast decoders cannot be edited",
    ]
    assert any(line.startswith(f"{file}: ablate-heads, part cross, heads 0: applied ") for line in told)


def test_scores_and_evaluations_are_edited(transom: Call, trained: Trained, spoken: LanguageRun, write: Write, tmp_path: Path) -> None:
    for folder, text, edit in ((trained.folder, "ab\tba", CROSS), (spoken.folder, "the sun of 3", FIRST)):
        plain, edited = (transom("score", folder, text, *option).out for option in ((), ("--edit", write(edit))))
        assert plain != edited
    pairs = ("--source", trained.source, "--target", trained.target)
    assert transom("score", trained.folder, *pairs).out != transom("score", trained.folder, *pairs, "--edit", write(CROSS)).out
    for path in (trained.source, trained.target):
        lines = path.read_text().splitlines(keepends=True)
        (tmp_path / path.name).write_text("".join(lines[:5]))
    few = ("--source", tmp_path / trained.source.name, "--target", tmp_path / trained.target.name, "--beam-size", "1")
    silent = {"kind": "set", "name": "decoder.norm.x", "value": 0} if load(trained.folder).model.decoder.norm is not None else CROSS
    outcome = transom("evaluate", trained.folder, *few, "--edit", write(silent), "--json")
    assert outcome.code == 0 and outcome.json["sentences"] == 5 and "applied " in outcome.err


def test_generated_texts_and_answers_are_edited(
    transom: Call, spoken: LanguageRun, instruction_tuned: Path, asked: Path, write: Write, tmp_path: Path
) -> None:
    file = write({"kind": "knock-out-key", "keys": [0]})
    for options in ((), ("--json",), ("--trace", "steps")):
        outcome = transom("generate", spoken.folder, "the sun", "--max-new-tokens", "3", "--edit", file, *options)
        assert outcome.code == 0 and "knock-out-key, keys 0: applied " in outcome.err
    few = tmp_path / "few.jsonl"
    few.write_text("".join(asked.read_text().splitlines(keepends=True)[:2]))
    outcome = transom("evaluate", instruction_tuned, "--instructions", few, "--max-new-tokens", "2", "--edit", file, "--json")
    assert outcome.code == 0 and outcome.json["instructions"] == 2 and "applied " in outcome.err


def test_classes_are_those_of_the_edited_model(
    transom: Call, classifying: Path, labelled: Path, seeing: Path, photos: Path, write: Write
) -> None:
    zero = write({"kind": "set", "name": "pooled", "value": 0})
    found = transom("classify", classifying, "a cat of 3", "a wolf of 1", "--edit", zero, "--json")
    same = [each["probabilities"] for each in found.json]
    assert same[0] == same[1], "both texts have the same vector"
    assert "accuracy 50.00%" in transom("classify", classifying, "--labeled-data", labelled, "--edit", zero).out
    pictures = sorted((photos / "dark").iterdir())[:1] + sorted((photos / "light").iterdir())[:1]
    one, two = transom("classify", seeing, *pictures, "--edit", zero, "--json").json
    assert one["probabilities"] == two["probabilities"]


def test_masks_tags_and_vectors_are_those_of_the_edited_model(
    transom: Call, filling: Path, tagging: Path, classifying: Path, write: Write
) -> None:
    zero = write({"kind": "set", "name": "encoder.blocks.0.resid_post", "value": 0.5})
    one, other = transom("fill", filling, "the [MASK] is", "sun of [MASK] is", "--edit", zero, "--json").json
    assert one["masks"] == other["masks"], "all tokens have the same vector"
    words = transom("tag", tagging, "the cat", "--edit", zero, "--json").json[0]["p"]
    assert len(words) == 2 and len({f"{p:.4f}" for p in words}) == 1
    lines = transom("embed", classifying, "a cat", "a wolf of 3", "--edit", zero).out
    assert lines.count("1.000") == 4, lines


@needs_library
@pytest.mark.kernels
def test_an_edited_model_does_not_claim_to_compute_in_int8(transom: Call, classifying: Path, write: Write) -> None:
    zero = write({"kind": "set", "name": "pooled", "value": 0})
    plain = transom("classify", classifying, "a cat of 3", "--edit", zero, "--json")
    short = transom("classify", classifying, "a cat of 3", "--edit", zero, "--precision", "int8", "--json")
    assert short.json == plain.json
    assert "do not compute in int8" in short.err and "int8" not in plain.err


def test_a_trace_of_an_edited_model(transom: Call, trained: Trained, write: Write) -> None:
    file = write({"kind": "knock-out-key", "part": "cross", "keys": [1]})
    outcome = transom("trace", trained.folder, "ab ba", "--names", "cross.weights,attn.weights", "--edit", file, "--json")
    weights = outcome.json["quantities"]["decoder.blocks.0.cross.weights"]["values"]
    assert all(row[1] == 0 for head in weights[0] for row in head)
    assert {each["address"] for each in outcome.json["certificates"]} == {"encoder.blocks.0.attn", "decoder.blocks.0.attn"}
    assert "not certified, since their head outputs are edited: decoder.blocks.0.cross" in outcome.err
    (edit,) = outcome.json["edits"]
    assert edit["fired"] > 0 and {**edit, "fired": 0} == {"kind": "knock-out-key", "part": "cross", "keys": [1], "fired": 0}


def test_an_edit_that_never_fired_ends_the_command_with_a_line(transom: Call, trained: Trained, spoken: LanguageRun, write: Write) -> None:
    far = write({**FIRST, "positions": [14]})
    for command in (("trace", trained.folder, "ab"), ("translate", trained.folder, "ab"), ("score", spoken.folder, "the")):
        outcome = transom(*command, "--edit", far)
        *_, line = outcome.err.splitlines()
        assert outcome.code == 2 and line.startswith(f"error: {far}: edit 0 (scale, name resid_post, positions 14, factor -2.0): ")
        assert "no row has positions 14, since the longest has " in line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("nothing", "edits.json: expected JSON, found a mistake at line 1, column 1; transom trace --help shows an example"),
        ("", "edits.json: expected JSON, found an empty file"),
        ("[]", "edits.json: expected an object such as "),
        ('{"version": 1, "edits": [{"kind": "scale", "name": "resid_post", "factor": NaN}]}', "found NaN, which is not JSON"),
        (
            '{"version": 1, "edits": [{"kind": "ablate-heads", "heads": [0, 0]}]}',
            "edits.0.heads: expected each number once, found 0 2 times",
        ),
        (
            '{"version": 1, "edits": [{"kind": "patch", "name": "resid_post", "text": ""}]}',
            "edits.json: edits.0: text: expected a text of at",
        ),
        ('{"version": 1, "edits": [{"kind": "scale"}]}', "missing field edits.0.name"),
        (
            '{"version": 1, "edits": [{"kind": "ablate-heads", "stack": "decoder", "heads": [9]}]}',
            "edits.json: edits.0: ablate-heads: heads: expected indices from 0 to 1",
        ),
        ('{"version": 1, "edits": [{"kind": "set", "name": "logits", "value": 0}]}', "found logits, which is the output of the model; "),
        ('{"version": 1, "edits": [{"kind": "scale", "name": "crss.z", "factor": 1}]}', "the nearest are cross.z, "),
    ],
)
def test_files_with_mistakes_are_refused(content: str, expected: str, transom: Call, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "edits.json"
    file.write_text(content)
    for command in ("translate", "trace"):
        assert expected in transom(command, trained.folder, "ab", "--edit", file).error


def test_of_many_edits_the_first_are_printed_and_one_that_changes_no_value_is_allowed(
    transom: Call, trained: Trained, write: Write
) -> None:
    same = {"kind": "scale", "name": "logits", "factor": 1} | {"name": "decoder.blocks.0.resid_post"}
    outcome = transom("trace", trained.folder, "ab", "--names", "logits", "--edit", write(*[same] * 300), "--json")
    plain = transom("trace", trained.folder, "ab", "--names", "logits", "--json")
    assert outcome.json["quantities"] == plain.json["quantities"] and len(outcome.json["edits"]) == 300
    lines = outcome.err.splitlines()
    assert lines.count("... and 290 more edits") == 2 and len(lines) == 22 + len(plain.err.splitlines())


def test_the_help_shows_an_example_that_is_valid(transom: Call, tmp_path: Path) -> None:
    for command in ("trace", "generate", "translate", "score", "classify", "evaluate", "fill", "tag", "embed", "explain", "ablate"):
        assert "--edit" in transom(command, "--help").out
    file = tmp_path / "edits.json"
    file.write_text(EXAMPLE)
    assert [edit.kind for edit in load_edits(file)] == ["ablate-heads"]


def test_heads_of_a_translator_are_ablated_one_by_one(transom: Call, trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "heads.json"
    page = transom("ablate", trained.folder, "ab ba", "--part", "cross", "--answer", "ab ba", "--out", out)
    lines = page.out.splitlines()
    assert lines[0].startswith("answer 'ab ba': log p -") and lines[2].split() == ["block", "head", "0", "head", "1"]
    record = json.loads(out.read_text(encoding="utf-8"))
    run = load(trained.folder, "fp32")
    assert record["log_p"] == pytest.approx(run.score(["ab ba"], ["ab ba"])[0].log_p, abs=1e-4)
    for row, cell in zip(record["rows"], lines[3].split()[1:], strict=True):
        with package.edits(run, [row["edit"]]):
            log_p = run.score(["ab ba"], ["ab ba"])[0].log_p
        assert row["log_p"] == pytest.approx(log_p, abs=1e-4) and cell == f"{row['change']:+.4f}"


def test_the_answer_of_an_instruction_tuned_model_follows_its_prompt(instruction_tuned: Path, transom: Call) -> None:
    run = load(instruction_tuned, "fp32")
    question = ask(run, "What is 3?", answer="a sun")
    prompt, answer = run.encode("What is 3?"), run.encode("a sun")
    assert question.batch.decoder_input.tokens[0].tolist() == [EOS, *prompt, SOS, *answer[:-1]]
    value = transom("ablate", instruction_tuned, "What is 3?", "--answer", "a sun", "--json").json
    with torch.no_grad():
        log_p = run.model(question.batch)[0, len(prompt) + 1 :].log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum()
    assert value["log_p"] == pytest.approx(float(log_p), abs=1e-4)


@pytest.mark.parametrize("over", ["keys", "positions"])
def test_keys_and_positions_are_listed_with_their_tokens(over: str, transom: Call, spoken: LanguageRun) -> None:
    source = ("--patch-from", "the moon") if over == "positions" else ()
    lines = transom("ablate", spoken.folder, "the star", "--over", over, *source).out.splitlines()
    assert lines[2].split()[:2] == ["position", "token"] and lines[3].split()[:2] == ["0", "[EOS]"]
    value = transom("ablate", spoken.folder, "the star", "--over", over, *source, "--json").json
    assert value["over"] == over and {row["number"] for row in value["rows"]} == set(range(len(lines) - 3))


def test_the_neurons_of_a_classifier_with_the_largest_changes_are_listed(transom: Call, classifying: Path, write: Write) -> None:
    command = ("ablate", classifying, "a cat", "--over", "neurons", "--value", "mean", "--reference", "a wolf")
    value = transom(*command, "--json").json
    lines = transom(*command).out.splitlines()
    largest = max(value["rows"], key=lambda row: abs(row["change"]))
    assert lines[3].split() == [largest["block"], str(largest["number"]), f"{largest['change']:+.4f}"]
    assert len(value["rows"]) == 16 * len({row["block"] for row in value["rows"]})
    edited = transom(*command, "--edit", write({"kind": "set", "name": "pooled", "value": 0}), "--json").json
    assert all(abs(row["change"]) < 1e-6 for row in edited["rows"]) and edited["edits"][0]["fired"] > 0


def test_a_picture_is_patched_from_another(transom: Call, seeing: Path, photos: Path) -> None:
    dark, light = (next((photos / name).iterdir()) for name in ("dark", "light"))
    value = transom("ablate", seeing, "--input", dark, "--over", "positions", "--patch-from", light, "--answer", "light", "--json").json
    assert value["answer"] == "light" and any(abs(row["change"]) > 1e-6 for row in value["rows"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "expected TEXT or --input, found both or neither"),
        (("ab",), "--stack: expected encoder or decoder for a translator, found none; give one of them, or --part cross"),
        (("ab", "--over", "positions"), "--patch-from: expected a text with --over positions, and none with the others"),
        (("ab", "--reference", "a b"), "--reference: expected --value mean or resample, found --value zero"),
        (("ab", "--part", "cross", "--value", "resample"), "--reference: expected reference texts for resample, found none"),
        (("ab", "--part", "cross", "--value", "mean", "--reference", ""), "--reference: expected a text of at least one token, found none"),
        (("ab", "--part", "cross", "--over", "neurons"), "--part: expected it with --over heads or keys only, found --over neurons"),
        (("ab", "--stack", "decoder", "--site", "resid_mid"), "--site: expected it with --over positions only, found --over heads"),
        (("ab", "--stack", "decoder", "--over", "keys", "--value", "mean"), "--value: expected it with --over heads or neurons only, "),
        (("ab", "--part", "cross", "--blocks", "9"), "--blocks: expected indices from 0 to 0, found 9"),
        (("ab", "--part", "cross", "--stack", "encoder"), "--part: expected blocks with cross-attention, found none in the encoder"),
        (("ab", "--part", "cross", "--out", "missing/x.json"), "found no folder missing; create it first"),
        (("", "--part", "cross"), "TEXT: expected a text of at least one token, found none"),
        (("ab", "--stack", "decoder", "--blocks", "x"), "--blocks: expected whole numbers from 0, separated by commas, found 'x'"),
        (("ab ba " * 99, "--part", "cross"), "tokens"),
    ],
)
def test_mistakes_of_a_sweep_are_one_line(options: tuple[str, ...], expected: str, transom: Call, trained: Trained) -> None:
    assert expected in transom("ablate", trained.folder, *options).error
