"""The commands that use a trained model answer in order, in text and in JSON, and keep the ledger."""

import io
import json
import math
import re
import tomllib
from pathlib import Path

import pytest

import transom as package
from tests.cli.conftest import Call, Trained, sets
from transom.config.packaged import packaged_presets, packaged_recipes


def test_one_line_out_for_each_line_in(trained: Trained, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["ab ba", "", "cab", "   ", "never seen: żółw \u2028 here", "ab " * 400]
    content = "\r\n".join(lines).encode()
    (tmp_path / "in").write_bytes(content)
    by_file = transom("translate", trained.folder, "--input", tmp_path / "in")
    assert by_file.code == 0
    given = by_file.out.removesuffix("\n").split("\n")
    assert len(given) == len(lines)
    assert given[1] == given[3] == ""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert transom("translate", trained.folder).out == by_file.out
    assert transom("translate", trained.folder, "--input", tmp_path / "in", "--output", tmp_path / "out").out == ""
    assert (tmp_path / "out").read_text() == by_file.out
    assert transom("translate", trained.folder, "cab").out == given[2] + "\n"


def test_too_long_lines_are_refused_where_asked(trained: Trained, transom: Call, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("ab\n" + "ab " * 400 + "\n")
    assert (
        f"{tmp_path / 'in'}:2: expected at most"
        in transom("translate", trained.folder, "--input", tmp_path / "in", "--too-long", "refuse").error
    )


def test_n_best_and_json(trained: Trained, transom: Call) -> None:
    best = transom("translate", trained.folder, "ab ba", "--n-best", "2", "--json").json[0]
    scores = [each["score"] for each in best["translations"]]
    assert best["source"] == "ab ba" and scores == sorted(scores, reverse=True) and len(scores) == 2
    rows = [line.split(" ||| ") for line in transom("translate", trained.folder, "ab ba", "--n-best", "2").out.splitlines()]
    assert [row[:2] for row in rows] == [["0", each["text"]] for each in best["translations"]]
    assert "found 3; raise beam_size" in transom("translate", trained.folder, "ab", "--n-best", "3", "--beam-size", "2").error


def test_samples_differ_and_are_repeated_by_their_seed(trained: Trained, transom: Call) -> None:
    sample = ("translate", trained.folder, "ab ba", "--sample", "--n-best", "3")
    [record] = transom(*sample, "--seed", "5", "--json").json
    texts = [each["text"] for each in record["translations"]]
    assert len(set(texts)) == 3 and all(each["log_p"] < 0 for each in record["translations"])
    rows = [line.split(" ||| ") for line in transom(*sample, "--seed", "5", "--temperature", "1").out.splitlines()]
    assert [(row[1], row[3]) for row in rows] == [(each["text"], f"{each['log_p']:.4f}") for each in record["translations"]]
    assert [each["text"] for each in transom(*sample, "--seed", "6", "--json").json[0]["translations"]] != texts
    greedy = transom("translate", trained.folder, "ab ba", "--beam-size", "1").out
    cold = transom("translate", trained.folder, "ab ba", "--sample", "--temperature", "0", "--top-k", "3")
    assert cold.out == greedy and "greedy decoding, so these options have no effect: --top-k" in cold.err
    python = package.load(trained.folder).translate(["ab ba"], sample=True, seed=5)
    assert python == texts[:1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--sample", "--beam-size", "2"),
            "expected --beam-size only with beam search, found --beam-size with --sample; leave --beam-size out",
        ),
        (
            ("--sample", "--length-penalty", "0"),
            "expected --length-penalty only with beam search, found --length-penalty with --sample; leave --length-penalty out",
        ),
        (
            ("--temperature", "0.5"),
            "expected --temperature only with --sample, found --temperature with beam search; leave --temperature out",
        ),
        (("--seed", "1"), "expected --seed only with --sample, found --seed with beam search; leave --seed out"),
        (("--sample", "--top-p", "0"), "top_p"),
    ],
)
def test_options_of_sampling_and_search_are_not_mixed(trained: Trained, transom: Call, options: tuple[str, ...], expected: str) -> None:
    assert expected in transom("translate", trained.folder, "ab", *options).error


def test_evaluate_and_its_ledger(trained: Trained, transom: Call, tmp_path: Path) -> None:
    arguments = ("evaluate", trained.folder, "--source", trained.source, "--target", trained.target)
    ledger = trained.folder / "ledger.jsonl"
    before = ledger.read_bytes() if ledger.exists() else None
    assert "expected a language among as, bn, " in transom(*arguments, "--tokenized", "xx").error
    assert before == (ledger.read_bytes() if ledger.exists() else None), "no reading was noted"
    value = transom(*arguments, "--tokenized", "de", "--json", "--output", tmp_path / "out").json
    assert value["sentences"] == 120 == (tmp_path / "out").read_text().count("\n")
    assert "case:lc" in value["bleu_lc"]["signature"] and "tok:13a" in value["bleu_lc"]["signature"]
    assert "lc.norm.tok" in value["bleu_tokenized_lc"]["signature"]
    assert sum(bucket["n_sentences"] for bucket in value["bleu_lc_by_length"]) == 120
    entries = [json.loads(line) for line in (trained.folder / "ledger.jsonl").read_text().splitlines()]
    assert [Path(entry["file"]).name for entry in entries[-2:]] == ["0.source", "0.target"]
    assert {entry["command"] for entry in entries[-2:]} == {"evaluate"}
    text = transom(*arguments).out
    assert ["bleu_lc", f"{value['bleu_lc']['score']:.2f}"] in [line.split() for line in text.splitlines()]
    assert value["bleu_lc"]["signature"] in text


def test_score_is_the_log_probability_and_its_perplexity(trained: Trained, transom: Call) -> None:
    arguments = ("score", trained.folder, "--source", trained.source, "--target", trained.target)
    value = transom(*arguments, "--json").json
    total, n_tokens = (sum(pair[name] for pair in value["pairs"]) for name in ("log_p", "n_tokens"))
    assert value["perplexity"] == pytest.approx(math.exp(-total / n_tokens))
    *lines, last = transom(*arguments).out.splitlines()
    assert [float(line) for line in lines] == pytest.approx([pair["log_p"] for pair in value["pairs"]], abs=1e-4)
    assert last.startswith(f"perplexity {value['perplexity']:.4f} over {n_tokens:,} tokens of 120 pairs")


def test_compare_a_run_with_itself_finds_nothing(trained: Trained, transom: Call) -> None:
    arguments = ("compare", trained.folder, trained.folder, "--source", trained.source, "--target", trained.target, "--resamples", "50")
    value = transom(*arguments, "--json").json
    assert (value["difference"], value["n_samples"]) == (0.0, 50)
    assert "no significant difference" in transom(*arguments).out


def test_presets_are_listed_by_a_line_each_and_printed_as_toml(transom: Call) -> None:
    listed = transom("recipes", "presets").out.splitlines()
    facts = transom("recipes", "presets", "--json").json
    assert [line.split()[0] for line in listed] == list(facts) == list(packaged_presets())
    assert facts["gpt2-xl"]["parameters"] == 1_542_000_000 and facts["gpt2-xl"]["model"]["n_layers"] == 48
    assert "gpt2-xl   1.542 billion parameters; Radford et al. 2019, table 2, fourth row" in re.sub(" {3,}", "   ", "\n".join(listed))
    printed = transom("recipes", "presets", "gopher-280b").out
    assert tomllib.loads(printed) == packaged_presets()["gopher-280b"]
    assert transom("recipes", "presets", "gopher-280b", "--json").json == {"name": "gopher-280b", **packaged_presets()["gopher-280b"]}
    assert "expected the name of a preset, found 'gtp2'; did you mean gpt2" in transom("recipes", "presets", "gtp2").error
    assert "`transom recipes presets` lists them" in transom("recipes", "presets", "x").error


def test_recipes(transom: Call, tmp_path: Path) -> None:
    listed = transom("recipes", "--json").json
    assert list(listed) == list(packaged_recipes())
    assert all(line in transom("recipes").out for line in listed.values())
    assert transom("recipes", "show", "copy").out == packaged_recipes()["copy"]
    mine = tmp_path / "mine.toml"
    assert transom("recipes", "copy", "copy", mine).code == 0
    assert mine.read_text() == packaged_recipes()["copy"]
    assert "already exists" in transom("recipes", "copy", "sort", mine).error
    assert transom("recipes", "show", "copy", "--json").json == {"name": "copy", "text": packaged_recipes()["copy"]}
    other = tmp_path / "other.toml"
    assert transom("recipes", "copy", "copy", other, "--json").json == {"name": "copy", "file": str(other)} and other.exists()
    assert mine.read_text() == packaged_recipes()["copy"]
    assert "cannot write" in transom("recipes", "copy", "copy", tmp_path / "no" / "x.toml").error


def test_tokenizer(trained: Trained, transom: Call, tmp_path: Path) -> None:
    files = ("--source", trained.source, "--target", trained.target)
    made = transom(
        "tokenizer", "train", "translation", *files, "--out", tmp_path / "t.json", *sets("tokenizer.vocab_size=300"), "--json"
    ).json
    assert made["kind"] == "bpe" and made["source_vocab_size"] <= 300
    shown = transom("tokenizer", "show", tmp_path / "t.json", "ab żółw", "--json").json
    assert len(shown["tokens"]["both"]) == len(shown["symbols"]["both"]) > 1
    assert "char" in transom("tokenizer", "show", trained.folder).out
