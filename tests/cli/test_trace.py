"""``transom names`` and ``transom trace``: every quantity is listed, read, certified and saved."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import Call, Trained
from transom.tasks.load import load
from transom.tasks.run_data import load_sample


def test_names_are_listed_once_for_all_blocks_or_each(transom: Call, trained: Trained) -> None:
    lines = transom("names", trained.folder).out.splitlines()
    row = next(line for line in lines if line.startswith("decoder.blocks.N.cross.weights "))
    assert re.fullmatch(
        r"\S+ +decoder\.N\.cross_attn\.hook_pattern +A +\(batch, n_heads=2, query, key\) +recomputed +softmax of the masked scores", row
    )
    each = transom("names", trained.folder, "cross.weights", "--each").out.splitlines()
    assert [line.split()[0] for line in each[1:]] == ["decoder.blocks.0.cross.weights"]
    (record,) = transom("names", trained.folder, "decoder.0.cross_attn.hook_pattern", "--json").json
    assert "seq2seq" in record["families"] and "recurrent-seq2seq" not in record["families"]
    assert (record["name"], record["cost"], record["axes"]) == (
        "decoder.blocks.0.cross.weights",
        "recomputed",
        ["batch", "n_heads", "query", "key"],
    )


def test_without_a_run_the_names_of_all_models_are_listed_with_their_families(transom: Call) -> None:
    lines = transom("names").out.splitlines()
    (row,) = (line for line in lines if line.startswith("block ") and " resid_cross " in line)
    assert re.fullmatch(
        r"block +resid_cross +hook_resid_mid_cross +X +\(batch, query, d_model\) +exists +seq2seq +residual stream after cross-attention",
        row,
    )
    records = transom("names", "--json").json
    assert len(records) == len(lines) - 1 and all(record["families"] for record in records)
    assert {family for record in records if record["name"] == "logits" for family in record["families"]} >= {"decoder", "convolutional"}


def test_an_unknown_name_is_answered_with_the_three_nearest(transom: Call, trained: Trained) -> None:
    for command in (("names", trained.folder, "cros.weights"), ("trace", trained.folder, "a b", "--names", "cros.weights")):
        outcome = transom(*command)
        assert outcome.code == 2
        assert "found 'cros.weights'; the nearest are cross.weights, " in outcome.error


def test_a_trace_is_summarized_certified_and_saved(transom: Call, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "trace.safetensors"
    asked = ("trace", trained.folder, "a b c", "--names", "cross.weights,resid_post", "--blocks", "0", "--out", file)
    outcome = transom(*asked)
    assert outcome.code == 0
    assert re.search(r"^source: .*\[EOS\]$", outcome.out, re.M) and re.search(r"^target: \[SOS\]", outcome.out, re.M)
    assert re.search(
        r"\d+ attention maps? certified: the largest error is \S+ of its bound of rounding \(decoder.blocks.0.cross\)", outcome.out
    )
    saved = load_file(file)
    assert set(saved) == {"decoder.blocks.0.cross.weights", "decoder.blocks.0.resid_post", "encoder.blocks.0.resid_post"}
    weights = saved["decoder.blocks.0.cross.weights"]
    assert weights.sum(-1).sub(1).abs().max() < 1e-5
    page = transom("trace", trained.folder, "a b c", "--names", "cross.weights", "--heads", "1", "--positions", "0").out
    assert re.search(r"^    query / key .*\[EOS\]$", page, re.M), "a small tensor is shown with its tokens"
    value = transom("trace", trained.folder, "a b c", "--names", "cross.weights", "--heads", "1", "--positions", "0", "--json").json
    quantity = value["quantities"]["decoder.blocks.0.cross.weights"]
    assert quantity["shape"] == [1, 1, 1, weights.shape[-1]]
    assert quantity["values"][0][0][0] == pytest.approx(weights[0, 1, 0].tolist(), abs=1e-6)
    assert all(each["ratio"] < 1 for each in value["certificates"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "expected TEXT, --input or --sample, found several or none"),
        (("a b", "--sample", "0"), "expected TEXT, --input or --sample, found several or none"),
        (("--sample", "0", "--target", "a"), "--target: expected none with --sample, whose target is that of the data, found both"),
        (("--sample", "99999999"), "--sample: expected a number from 0 to "),
        (("--sample", "cat.jpg"), "found 'cat.jpg'; choose another sample"),
        (("a", "--heads", "x"), "--heads: expected whole numbers from 0, separated by commas, found 'x'"),
        (("a", "--heads", "0,1,0"), "--heads: expected each number once, found 0 2 times"),
        (("a", "--heads", "99"), "--heads: expected indices from 0 to 1, found 99"),
        (("a", "--blocks", "5"), "--blocks: expected indices from 0 to 0, found 5"),
        (("a", "--positions", "50"), "--positions: expected indices from 0 to "),
        (("",), "TEXT: expected a text of at least one token, found none"),
        (("a", "--names", "logits,,probs"), "expected the name of a quantity, found an empty one"),
        (("a", "--temperature", "x"), "invalid value for '--temperature': expected a number; see transom trace --help"),
        (("a", "--temperature", "0"), "invalid value for '--temperature': expected a number greater than or equal to 0.000001; see "),
        (
            ("a", "--out", "missing/x.safetensors"),
            "expected an output file in a folder that exists, found no folder missing; create it first",
        ),
        (("a", "--out", "."), "expected a new output file, found a folder"),
        (("a", "--out", "x.json"), "--out: expected a file that ends in .safetensors, found x.json"),
    ],
)
def test_mistakes_are_one_line(options: tuple[str, ...], expected: str, transom: Call, trained: Trained) -> None:
    outcome = transom("trace", trained.folder, *options)
    assert outcome.code == 2 and expected in outcome.error


def test_an_empty_name_and_blocks_without_a_run_are_refused(transom: Call, trained: Trained) -> None:
    assert "expected the name of a quantity, found an empty one" in transom("names", trained.folder, "").error
    assert "--each: expected a run, whose blocks are listed, found none; give RUN" in transom("names", "--each").error


def test_a_sample_of_the_validation_data_is_traced(transom: Call, trained: Trained) -> None:
    """Its translation is that of the data, not the model's own."""
    found, batch = transom("trace", trained.folder, "--sample", "0", "--names", "logits", "--json").json, load_sample(trained.folder, 0)
    tokens = [side.tokens.shape[1] for side in (batch.source, batch.decoder_input)]
    assert [len(found["tokens"][side]) for side in ("source", "target")] == tokens
    assert found["quantities"]["logits"]["values"][0][-1] == pytest.approx(
        load(trained.folder, "fp32").model(batch)[0, -1].tolist(), abs=1e-4
    )


def test_a_file_of_the_run_is_not_overwritten(transom: Call, trained: Trained) -> None:
    outcome = transom("trace", trained.folder, "a", "--out", trained.folder / "model.safetensors")
    assert outcome.code == 2 and "model.safetensors" in outcome.error


def test_a_translation_is_traced_step_by_step(transom: Call, trained: Trained, tmp_path: Path) -> None:
    plain = transom("translate", trained.folder, "a b c", "--beam-size", "2").out.strip()
    file = tmp_path / "steps.json"
    page = transom("translate", trained.folder, "a b c", "--beam-size", "2", "--trace", "steps", "--trace-file", file)
    assert page.code == 0
    lines = page.out.splitlines()
    assert lines[0] == "step 1" and lines[-2:] == ["", plain]
    assert re.fullmatch(r"  \(start\)  \[log p 0\.000\]", lines[1])
    assert re.search(r"\[\S+ \d+\.\d%\]", lines[2])
    assert any(line.startswith("  finished: ") for line in lines)
    (record,) = json.loads(file.read_text(encoding="utf-8"))
    (answer,) = transom("translate", trained.folder, "a b c", "--beam-size", "2", "--trace", "steps", "--json").json
    assert answer["steps"] == record["steps"] and answer["text"] == record["text"] == plain
    first = record["steps"][0]
    assert [len(step["hypotheses"]) for step in record["steps"][:2]] == [1, 2]
    assert first["kept"][0]["p"] == pytest.approx(first["hypotheses"][0]["candidates"][0]["p"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--trace", "steps", "--n-best", "2"), "--trace: expected one text per input, found --n-best 2"),
        (("--trace-file", "x.json"), "--trace-file: expected --trace steps, found none"),
    ],
)
def test_options_of_a_step_trace_that_do_not_fit(options: tuple[str, ...], expected: str, transom: Call, trained: Trained) -> None:
    outcome = transom("translate", trained.folder, "a", *options)
    assert outcome.code == 2 and expected in outcome.error


def test_a_text_that_is_too_long_is_truncated_and_noted(transom: Call, trained: Trained) -> None:
    outcome = transom("trace", trained.folder, "a b " * 300, "--names", "resid_post")
    assert outcome.code == 0 and "was truncated to the context window of" in outcome.err


def test_a_target_replaces_the_translation(transom: Call, trained: Trained) -> None:
    asked = ("trace", trained.folder, "ab ba", "--names", "logits", "--json")
    own, given = transom(*asked).json, transom(*asked, "--target", "ba ab ba ab").json
    assert own["tokens"]["source"] == given["tokens"]["source"] and len(given["tokens"]["target"]) > 4
    assert own["tokens"]["target"] != given["tokens"]["target"]
