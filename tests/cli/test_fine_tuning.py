"""``transom train --init-from RUN --set ...``: changes that the weights allow are made, others are refused, none is ignored."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import Call, Trained, sets
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe

SHAPE = ("model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=16", "model.max_seq_len=16")
FEW = (
    "tokenizer.kind=char",
    "training.batch_tokens=64",
    "training.max_steps=4",
    "training.validate_every=2",
    "training.checkpoint_every=2",
    "training.validate_samples=0",
    "training.precision=fp32",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text("the dog barks and the cat purrs and the bird sings\n" * 40)
    return path


@pytest.fixture
def base(text: Path, transom: Call, tmp_path: Path) -> Path:
    """Train a decoder with rotary positions for four steps."""
    assert transom("train", "text-bpe", "--text", text, "--out", tmp_path / "base", "--json", *sets(*SHAPE, *FEW)).code == 0
    return tmp_path / "base"


def model_of(folder: Path) -> Any:
    return RunFolder.open(folder).load_config()


def tune(base: Path, text: Path, out: Path, *more: str | Path, recipe: str | Path = "text-bpe") -> list[str | Path]:
    """Spell the command that goes on from a run."""
    few = sets(*(each for each in FEW if not each.startswith("tokenizer")))
    return ["train", recipe, "--text", text, "--init-from", base, "--out", out, *few, *more]


@pytest.mark.long
def test_a_longer_context_is_taken_and_goes_on(base: Path, text: Path, transom: Call, tmp_path: Path) -> None:
    asked = sets("model.max_seq_len=64", "model.position.rope_scaling=yarn", "model.position.rope_scaling.factor=4.0", "model.dropout=0.2")
    outcome = transom(*tune(base, text, tmp_path / "tuned", *asked))
    assert outcome.code == 0
    assert (
        f"changed from the model of {base}: max_seq_len 64 (was 16),"
        " position.rope_scaling { kind = \"yarn\", factor = 4.0, original_max_seq_len = 16 } (was 'none')"
    ) in outcome.err
    model = model_of(tmp_path / "tuned")
    assert (model.max_seq_len, model.position.rope_scaling.kind, model.position.rope_scaling.factor, model.dropout) == (
        64,
        "yarn",
        4.0,
        0.2,
    )
    assert (model.d_model, model.n_layers, model.position.rope_scaling.original_max_seq_len) == (16, 1, 16)
    assert load_recipe(tmp_path / "tuned" / "recipe.toml")[0].model == model
    split = [*tune(base, text, tmp_path / "split", *asked), "--json"]
    assert transom(*split, "--set", "training.max_steps=2", "--set", "training.schedule=inverse-sqrt").code == 0
    whole = [*tune(base, text, tmp_path / "whole", *asked), "--json", "--set", "training.schedule=inverse-sqrt"]
    assert transom(*whole).code == 0 and transom(*split, "--set", "training.schedule=inverse-sqrt", "--resume").json["step"] == 4
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "split"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one), "as if never stopped"
    other = transom(*split, *sets("model.max_seq_len=32"), "--set", "training.schedule=inverse-sqrt", "--resume").error
    assert "the run was started with model.max_seq_len = 64, found 32; a resumed run keeps its recipe" in other


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            "model.d_model=32",
            "--set model.d_model=32: expected model.d_model = 16, with which the weights of BASE were trained, found 32; ",
        ),
        ("model.n_layers=2", "expected model.n_layers = 1, .* found 2; "),
        ("model.norm=layernorm", "expected model.norm = 'rmsnorm', .* found 'layernorm'; "),
        ("model.position=alibi", "expected model.position = 'rotary', .* found 'alibi'; "),
        ("model.attention.sinks=true", "expected model.attention.sinks = false, .* found true; "),
        ("model.preset=gpt2", "--set model.preset=gpt2: expected model.[a-z_]+ = .* found "),
        (
            "tokenizer.kind=bpe",
            "--set tokenizer.kind=bpe: expected tokenizer.kind = 'char', as in the run BASE, found 'bpe'; ",
        ),
    ],
)
def test_what_cannot_change_is_refused(setting: str, told: str, base: Path, text: Path, transom: Call, tmp_path: Path) -> None:
    error = transom(*tune(base, text, tmp_path / "tuned", *sets(setting))).error
    assert re.match(rf"error: .*{told.replace('BASE', re.escape(str(base)))}", error), error
    assert error.endswith("omit this field, or train without --init-from")
    assert not (tmp_path / "tuned").exists()


def test_a_packaged_recipe_s_own_shape_gives_way_and_a_person_s_does_not(base: Path, text: Path, transom: Call, tmp_path: Path) -> None:
    packaged = load_recipe("text-bpe", [f"data.train.files={json.dumps(str(text))}"])[0].model
    outcome = transom(*tune(base, text, tmp_path / "tuned"))
    assert outcome.code == 0 and model_of(tmp_path / "tuned").d_model == 16 != packaged.d_model
    (told,) = (line for line in outcome.err.splitlines() if "the model's shape is that of" in line)
    assert f"not used are the recipe's d_model {packaged.d_model}" in told or f", d_model {packaged.d_model}" in told
    own = tmp_path / "own.toml"
    own.write_text('task = "language"\n[model]\nn_heads = 2\nd_model = 48\n[data.train]\nfiles = "x"\n')
    error = transom(*tune(base, text, tmp_path / "other", recipe=own)).error
    assert f"error: {own}:4: expected model.d_model = 16, with which the weights of {base} were trained, found 48; omit this field" in error
    own.write_text('task = "language"\n[model]\nn_heads = 2\nmax_seq_len = 32\n[data.train]\nfiles = "x"\n')
    assert transom(*tune(base, text, tmp_path / "other", recipe=own)).code == 0
    assert (model_of(tmp_path / "other").max_seq_len, model_of(tmp_path / "other").d_model) == (32, 16)


@pytest.mark.long
def test_what_is_asked_for_is_to_fit_the_run_and_not_the_packaged_recipe(base: Path, text: Path, transom: Call, tmp_path: Path) -> None:
    """The encoder of text-masked has learned positions: it has no scaling, and neither has the run's width that recipe's heads."""
    few = [*sets(*FEW), *sets("model.d_model=18", "model.n_heads=3", "model.d_ff=16", "model.n_layers=1", "model.max_seq_len=16")]
    rotary = [*few, *sets("model.position={ kind = 'rotary', rope_theta = 99.0 }")]
    masked = ["train", "text-masked", "--text", text, "--json"]
    assert transom(*masked, "--out", tmp_path / "rotary", *rotary).code == 0
    tuned = [*masked, "--init-from", tmp_path / "rotary", "--out", tmp_path / "tuned"]
    asked = sets("model.position.rope_scaling=linear", "model.position.factor=2.0", "model.n_heads=3", "model.d_model=18", *FEW[1:])
    assert transom(*tuned, *asked).code == 0
    position = model_of(tmp_path / "tuned").position
    assert (position.kind, position.rope_theta, position.rope_scaling.kind, position.rope_scaling.factor) == ("rotary", 99.0, "linear", 2.0)
    assert transom(*tuned, *asked, "--resume").code == 0
    unknown = transom(*tune(base, text, tmp_path / "typo", *sets("model.d_modle=3"))).error
    assert "--set model.d_modle=3: unknown field" in unknown and "d_model?" in unknown


def test_a_run_s_own_settings_may_be_said_again(trained: Trained, transom: Call, tmp_path: Path) -> None:
    """The command that began a run begins the next one from it, separate vocabularies and untied matrices among what it sets."""
    apart = [each.replace("tokenizer.joint=true", "tokenizer.joint=false") for each in trained.command]
    command = [*apart, *sets("model.tie_embeddings=decoder", "training.max_steps=2"), "--json", "--out"]
    assert transom(*command, tmp_path / "first").code == 0
    assert transom(*command, tmp_path / "second", "--init-from", tmp_path / "first").code == 0
    assert model_of(tmp_path / "second") == model_of(tmp_path / "first")


def test_adapters_dropout_and_a_mask_are_free(base: Path, text: Path, transom: Call, tmp_path: Path) -> None:
    asked = sets("training.adapter=lora", "model.attention_dropout=0.1", "model.attention.pattern={ kind = 'window', size = 4 }")
    assert transom(*tune(base, text, tmp_path / "tuned", *asked)).code == 0
    model = model_of(tmp_path / "tuned")
    assert (model.attention_dropout, model.attention.pattern.kind, model.attention.pattern.size) == (0.1, "window", 4)
    assert (tmp_path / "tuned" / "adapter.safetensors").exists()


def test_a_run_of_the_wrong_kind_is_named(base: Path, trained: Trained, text: Path, transom: Call, tmp_path: Path) -> None:
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("".join(f"a {word} thing\t{word}\n" for word in ("red", "blue")) * 30)
    classify = ["train", "text-classes", "--labeled-data", labelled, "--out", tmp_path / "classes", "--init-from"]
    translate = [*trained.command, "--out", tmp_path / "pairs", "--init-from"]
    for command, folder, expected, found in (
        (classify, trained.folder, "'encoder', 'text-classifier', 'text-embedder' or 'token-tagger'", "seq2seq"),
        (classify, base, "'encoder', 'text-classifier', 'text-embedder' or 'token-tagger'", "decoder"),
        (translate, base, "'seq2seq'", "decoder"),
        (tune(trained.folder, text, tmp_path / "text")[:-2], trained.folder, "'decoder'", "seq2seq"),
    ):
        error = transom(*command, *([] if "--init-from" in command[:-1] else [folder])).error
        assert error.startswith(f"error: training.init_from = '{folder}': expected a run of {expected}, ")
        assert f"found a run of '{found}'; give another run with --init-from or choose another recipe" in error
    assert not any((tmp_path / name).exists() for name in ("classes", "pairs", "text"))
