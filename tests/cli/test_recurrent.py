"""A recurrent network takes the same way as the Transformer: trained, resumed, asked, scored and compared by the same commands."""

from pathlib import Path

import pytest

import transom as package
from tests.cli.conftest import TINY, Call, Trained, sets
from tests.cli.test_language import TINY as TINY_TEXT
from transom.cli.main import main
from transom.data.pairs.datasets import load_translation_data
from transom.training.translation_metrics import exact_match

RECURRENT = (
    "model={ kind = 'recurrent-seq2seq', d_model = 16, n_encoder_layers = 2, n_decoder_layers = 2, max_seq_len = 64 }",
    *(override for override in TINY if not override.startswith("model.")),
)


@pytest.fixture(scope="session")
def recurrent(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny recurrent network on the same pairs."""
    out = tmp_path_factory.mktemp("recurrent") / "run"
    files = ["--source", str(trained.source), "--target", str(trained.target)]
    assert (
        main(
            [
                "train",
                "translation",
                *files,
                *sets(*RECURRENT, "training.max_steps=10", "decoding.min_length=4"),
                "--out",
                str(out),
                "--json",
            ]
        )
        == 0
    )
    return out


def test_pages_say_what_the_run_is_and_where_it_looked(recurrent: Path) -> None:
    card, page = (recurrent / "README.md").read_text(), (recurrent / "report.html").read_text()
    assert "a recurrent encoder-decoder" in card and "bidirectional encoder; attention additive" in card and "cell lstm" in card
    assert "an encoder of 2 layers, a decoder of 2 layers" in card and "sequences of at most 64 tokens" in card
    assert "decoder.cross" in page


def test_it_answers_to_every_command_of_translation(transom: Call, recurrent: Path, trained: Trained) -> None:
    files = ["--source", trained.source, "--target", trained.target]
    assert transom("translate", recurrent, "ab ba", "--precision", "fp32").code == 0
    best = transom("translate", recurrent, "ab ba", "--n-best", 2, "--json").json
    assert best
    assert transom("score", recurrent, *files, "--json").code == 0
    assert transom("evaluate", recurrent, *files, "--json").json["sentences"] == 120
    assert transom("compare", recurrent, trained.folder, *files, "--json").code == 0


def test_a_resumed_run_goes_on(transom: Call, recurrent: Path, trained: Trained, tmp_path: Path) -> None:
    files = ["--source", trained.source, "--target", trained.target]
    more = sets(*RECURRENT, "training.max_steps=12", "decoding.min_length=4")
    assert "12" in transom("train", "translation", *files, *more, "--out", recurrent, "--resume", "--json").out


def test_a_language_model_is_trained_asked_and_scored(transom: Call, tmp_path: Path) -> None:
    text, run = tmp_path / "text", tmp_path / "run"
    text.mkdir()
    for i in range(25):
        (text / f"{i}.txt").write_text(f"the sun of {i} is a sun\n")
    model = "model={ kind = 'recurrent-decoder', d_model = 16, n_layers = 2, max_seq_len = 16 }"
    short = [override for override in TINY_TEXT if not override.startswith("model.")]
    assert transom("train", "text-bpe", "--text", text, *sets(model, *short), "--out", run, "--json").code == 0
    card = (run / "README.md").read_text()
    assert "A language model: a recurrent network" in card and "a decoder of 2 layers" in card and "cell lstm, width 16" in card
    made = transom("generate", run, "the sun", "--seed", "3", "--precision", "fp32")
    assert made.code == 0 and made.out.startswith("the sun")
    assert transom("score", run, "--text", text / "1.txt", "--json").json["n_tokens"] > 1


@pytest.mark.soak
def test_it_learns_to_reverse(tmp_path: Path) -> None:
    model = "model={ kind = 'recurrent-seq2seq', d_model = 64, max_seq_len = 32, attention = 'additive' }"
    run = package.train("reverse", tmp_path / "run", set=[model, "training.max_steps=600"])
    recipe, base = package.config.recipe.load_recipe("reverse")
    test = load_translation_data(recipe.data, base).test
    assert run.step == 600 and test is not None
    assert exact_match(package.load(tmp_path / "run").translate(test.source), test.target) > 0.98
