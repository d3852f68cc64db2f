"""Recipes load, round-trip, and say in one line what is wrong with them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.config.arguments import training_overrides
from transom.config.components import FeedForwardConfig, LayerNormConfig
from transom.config.data import DATA_OPTIONAL
from transom.config.moe import BiasBalancingConfig, MoeConfig
from transom.config.packaged import packaged_presets, packaged_recipes
from transom.config.recipe import Recipe, dump_recipe, load_recipe
from transom.config.training import AdamConfig, AdamWConfig, EmaConfig, MuonConfig, SgdConfig
from transom.errors import ConfigError
from transom.tasks.short_runs import short_run_overrides
from transom.tasks.translation.schema import TranslationRecipe

Load = Callable[..., Recipe]

DATA = '[data]\ntrain = { source = "a", target = "b" }\n'


@pytest.fixture
def write(tmp_path: Path) -> Load:
    """Give a function that writes a recipe file and loads it."""

    def loaded(text: str, *overrides: str) -> Recipe:
        file = tmp_path / "my.toml"
        file.write_text(text, encoding="utf-8")
        return load_recipe(file, overrides)[0]

    return loaded


def message(write: Load, text: str, *overrides: str) -> str:
    """Return the one-line error that loading gives, without the folder."""
    with pytest.raises(ConfigError) as caught:
        write(text, *overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line[line.index("my.toml") :] if "my.toml" in line else line


def test_defaults_and_the_folder_of_relative_paths(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(DATA)
    recipe, base = load_recipe(tmp_path / "my.toml")
    assert base == tmp_path
    assert recipe.training.optimizer == AdamConfig()
    assert recipe.data.train is not None and recipe.data.train.source == "a"


def test_a_root_given_as_an_override_starts_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "my.toml").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    assert load_recipe("elsewhere/my.toml", ["data.root=x"])[1] == tmp_path
    assert load_recipe("elsewhere/my.toml", ["training.seed=2"])[1] == tmp_path / "elsewhere"


@pytest.mark.parametrize(
    ("text", "overrides", "optimizer"),
    [
        ("", ["training.optimizer=adamw"], AdamWConfig()),
        ('[training]\noptimizer = "sgd"', [], SgdConfig()),
        ("[training.optimizer]\nbeta2 = 0.99", [], AdamConfig(beta2=0.99)),
        ("", ["training.optimizer.beta2=0.99"], AdamConfig(beta2=0.99)),
        ('[training]\noptimizer = "adamw"', ["training.optimizer.weight_decay=0.5"], AdamWConfig(weight_decay=0.5)),
        ('[training.optimizer]\nkind = "adam"\nbeta1 = 0.8', ["training.optimizer.kind=sgd"], SgdConfig()),
        ("[training.optimizer]\nbeta1 = 0.8", ["training.optimizer={ beta2 = 0.9 }"], AdamConfig(beta2=0.9)),
    ],
)
def test_components_in_all_spellings(write: Load, text: str, overrides: list[str], optimizer: AdamConfig | SgdConfig) -> None:
    assert write(DATA + text, *overrides).training.optimizer == optimizer


def test_another_kind_of_tokenizer_keeps_the_other_fields_and_another_table_none(write: Load) -> None:
    text = DATA + "[tokenizer]\nlowercase = true\nvocab_size = 99\n"
    kept, replaced = (write(text, override).tokenizer for override in ("tokenizer.kind=char", "tokenizer={ kind = 'char' }"))
    assert (kept.kind, kept.lowercase, kept.vocab_size) == ("char", True, 99)
    assert (replaced.kind, replaced.lowercase) == ("char", False)


def test_a_mixture_in_all_spellings(write: Load) -> None:
    plain, deep = (
        write(DATA, *sets).model.feed_forward
        for sets in (
            ["model.feed_forward=moe"],
            [
                *("model.feed_forward=moe", "model.feed_forward.expert=gelu", "model.feed_forward.load_balancing=bias"),
                *(
                    "model.feed_forward.expert.bias=false",
                    "model.feed_forward.load_balancing.bias_update_rate=0.01",
                    "model.feed_forward.capacity_factor=1.25",
                ),
            ],
        )
    )
    assert plain == MoeConfig() and (plain.expert.kind, plain.load_balancing.kind) == ("swiglu", "aux-loss")
    assert deep == MoeConfig(
        expert=FeedForwardConfig(kind="gelu", bias=False), load_balancing=BiasBalancingConfig(bias_update_rate=0.01), capacity_factor=1.25
    )


def test_none_stands_for_null(write: Load) -> None:
    assert write(DATA + '[training]\nmax_grad_norm = "none"').training.max_grad_norm is None
    assert write(DATA, "training.max_grad_norm=none").training.max_grad_norm is None
    assert write(DATA, "training.average=none").training.average.kind == "none"


def test_the_last_override_wins(write: Load) -> None:
    assert write(DATA, "training.seed=2", "training.seed=3").training.seed == 3


@pytest.mark.parametrize(
    ("component", "field"),
    [
        ("tokenizer.kind=char", "tokenizer.vocab_size=300"),
        ("training.optimizer=adamw", "training.optimizer.weight_decay=0.5"),
        ("training.schedule.kind=wsd", "training.schedule.warmup_steps=7"),
        ("training.average={ kind = 'checkpoints', n_checkpoints = 3 }", "training.average.n_checkpoints=9"),
    ],
)
def test_a_component_takes_no_field_of_it_back_in_whatever_order(write: Load, component: str, field: str) -> None:
    recipe = write(DATA, field, component)
    assert recipe == write(DATA, component, field) != write(DATA, component)


def test_own_fields_go_over_the_preset(write: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"model": {"d_model": 64, "d_ff": 32, "norm": {"eps": 0.5}}}
    monkeypatch.setattr("transom.config.packaged.packaged_presets", lambda: {"small": small})
    model = write(DATA + '[model]\npreset = "small"\nd_ff = 128').model
    assert (model.d_model, model.d_ff, model.norm) == (64, 128, LayerNormConfig(eps=0.5))
    assert write(DATA, "model.preset=small").model.d_ff == 32
    assert "did you mean small?" in message(write, DATA, "model.preset=smal")


@pytest.mark.parametrize(
    ("recipe", "preset"), [("images", "vit-small-example"), ("text-bpe", "gpt2"), ("multi30k-lstm", "transformer-base")]
)
def test_a_preset_that_is_asked_for_stands_in_the_place_of_the_recipes_model(recipe: str, preset: str) -> None:
    asked = load_recipe(recipe, ["model.dropout=0.25", f"model.preset={preset}"], DATA_OPTIONAL)[0].model
    published = packaged_presets()[preset]["model"]
    assert asked == type(asked).model_validate(published | {"dropout": 0.25})


@pytest.mark.parametrize("name", packaged_presets())
def test_packaged_presets_fit_the_schema(write: Load, name: str) -> None:
    kind = packaged_presets()[name]["model"]["kind"]
    task = {"seq2seq": "translation", "decoder": "language", "encoder": "masked", "vision-transformer": "image-classification"}[kind]
    data = {"seq2seq": DATA, "vision-transformer": '[data]\ntrain = { images = "a" }\n'}.get(kind, '[data]\ntrain = { files = "a" }\n')
    assert write(f'task = "{task}"\n{data}[model]\npreset = "{name}"').model.kind == kind


@pytest.mark.parametrize("name", packaged_recipes())
def test_packaged_recipes_load_and_begin_with_a_comment(name: str) -> None:
    pairs, text = ["data.train.source=a", "data.train.target=b"], ["data.train.files=a"]
    one = ["data.train.file=a.tsv"]
    own = {"translation": pairs, "text-pairs": pairs, "text-bpe": text, "text-masked": text}
    own |= dict.fromkeys(("text-classes", "instructions", "tags"), one)
    own["images"], own["audio-classes"] = ["data.train.images=a"], ["data.train.audio=a"]
    files = own.get(name, [])
    recipe, base = load_recipe(name, files)
    assert base == Path.cwd()
    assert packaged_recipes()[name].startswith("# ")
    assert load_recipe(name, [*files, "training.max_steps=7"])[0].training.max_steps == 7
    assert recipe.training.max_steps > 7


@given(
    clip=st.none() | st.floats(0.1, 10),
    optimizer=st.sampled_from([AdamConfig(), AdamWConfig(weight_decay=0.3), MuonConfig(momentum=0.9), SgdConfig()]),
    root=st.text(min_size=1),
    decay=st.floats(0.01, 0.99),
    d_head=st.none() | st.integers(1, 9),
)
def test_what_is_dumped_loads_as_the_same(tmp_path_factory, clip, optimizer, root, decay, d_head) -> None:
    recipe = TranslationRecipe.model_validate(
        {
            "data": {"root": root, "train": {"pairs": "x.tsv", "source_field": 1}},
            "model": {"d_head": d_head},
            "training": {"max_grad_norm": clip, "optimizer": optimizer, "average": EmaConfig(decay=decay)},
        }
    )
    file = tmp_path_factory.mktemp("dump") / "r.toml"
    file.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(file)[0] == recipe


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        (
            "[training]\nmax_step = 3",
            [],
            "my.toml:4: unknown field training.max_step; did you mean training.max_steps or training.max_minutes?",
        ),
        (
            "",
            ["training.max_step=3"],
            "--set training.max_step=3: unknown field training.max_step; did you mean training.max_steps or training.max_minutes?",
        ),
        ("[trainin]\nseed = 1", [], "my.toml:3: unknown field trainin; did you mean training?"),
        ("[training]\nd_model = 1", [], "my.toml:4: unknown field training.d_model; did you mean model.d_model?"),
        (
            "[training.optimizer]\nbeta3 = 1",
            [],
            "unknown field training.optimizer.beta3; did you mean training.optimizer.beta2 or training.optimizer.beta1?",
        ),
        ("[decoding]\nxyzzy = 1", [], "fields of decoding are beam_size, length_penalty"),
        ("[training]\nmax_steps = 'many'", [], "my.toml:4: training.max_steps: expected a whole number, found 'many'"),
        ("[training]\nmax_steps = 0", [], "my.toml:4: training.max_steps: expected a number greater than or equal to 1, found 0"),
        ("[training]\nlearning_rate = 'x'", [], "training.learning_rate: expected a number or 'noam', found 'x'"),
        ("[training]\noptimizer = 'adan'", [], "training.optimizer: expected one of 'sgd', 'adam', 'adamw', 'muon', found 'adan'"),
        ("[training.optimizer]\nkind = 'adan'", [], "training.optimizer.kind: expected one of 'sgd', 'adam', 'adamw', 'muon'"),
        ("[training.optimizer]\nbeta1 = 2", [], "my.toml:4: training.optimizer.beta1: expected a number less than 1, found 2"),
        ("[model]\nd_model = 10", [], "my.toml:3: model: d_model 10 is not a multiple of n_heads 8; change one of them or set d_head"),
        ("[model.feed_forward]\nkind = 'moe'\ntop_k = 9", [], "my.toml:3: model.feed_forward: expected top_k of at most n_experts = 8"),
        ("", ["model.feed_forward=moe", "model.feed_forward.top_k=1"], "top_k = 1 requires norm_topk_prob = false"),
        ("", ["model.feed_forward=moe", "model.feed_forward.expert=moe"], "model.feed_forward.expert: expected one of 'relu'"),
        (
            "",
            ["training.r_drop=4", "model.dropout=0"],
            "that differ only by dropout, found none; set model.dropout, or training.r_drop = 0",
        ),
        ("", ["model.d_model=10", "model.dropout=0.2"], "--set model.d_model=10: model: d_model 10 is not a multiple of n_heads 8"),
        ("[model]\nd_model = 10", ["model.dropout=0.2"], "my.toml:3: model: d_model 10 is not a multiple of n_heads 8"),
        ("", ["training.r_drop=4", "model.dropout=0", "training.max_steps=10"], "--set model.dropout=0: expected dropout, since"),
        ("[training]\nr_drop = 4\n[model]\ndropout = 0", ["training.max_steps=10"], "my.toml: expected dropout, since"),
        ("", ["training=3"], "--set training=3: training: expected a table, found 3"),
        ("", ["data.train.source.x=3"], "data.train.source: expected a string, found a table"),
        ("", ["seed"], "--set seed: expected FIELD=VALUE as in training.max_steps=300"),
        ("[data", [], "my.toml:3: invalid TOML"),
        ("a = 1\na = 2", [], "my.toml:4: invalid TOML"),
        ("a = = 2", [], "my.toml:3:5: invalid TOML: invalid value"),
    ],
)
def test_messages(write: Load, text: str, overrides: list[str], expected: str) -> None:
    assert expected in message(write, DATA + text, *overrides)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[training]\nseed = 1", "my.toml: missing field data (the data)"),
        ("[data]\nroot = '.'", "my.toml:1: data: expected exactly one of data.train, data.generate and data.languages"),
        ("[data]\ntrain = { sorce = 'x' }", "my.toml:2: unknown field data.train.sorce; did you mean data.train.source?"),
        ("[data]\ngenerate = { n_train = 300 }", "my.toml:2: missing field data.generate.kind"),
        ("[data]\ntrain = 'x'", "my.toml:2: data.train: expected a table, found 'x'"),
    ],
)
def test_messages_about_data(write: Load, text: str, expected: str) -> None:
    assert message(write, text).startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        (training_overrides("copy", {}, steps=2**70), f"--steps {2**70}"),
        (training_overrides("copy", {}, minutes=-1.5), "--minutes -1.5"),
        (short_run_overrides(load_recipe("copy")[0], 2**70), f"--steps {2**70}"),
    ],
)
def test_an_error_names_the_option_that_was_written(overrides: list[str], option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: training.max_"):
        load_recipe("copy", overrides)


def test_several_errors_are_counted_in_one_line(write: Load) -> None:
    assert message(write, DATA + "[training]\nseed = -1\nmax_steps = 0").endswith("(1 more after this)")


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes("task = 'é'".encode("latin-1"))
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    cases = {
        "latin.toml": "expected UTF-8 text, found 0xe9 as byte 9; save the file as UTF-8",
        "large.toml": "expected at most 1,048,576 bytes, found 1,048,577",
        "missing.toml": "no such file",
        "": "expected a file, found a folder",
    }
    for name, expected in cases.items():
        with pytest.raises(ConfigError, match=expected):
            load_recipe(tmp_path / name)


def test_an_unknown_name_lists_or_suggests_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.config.recipe.packaged_recipes", lambda: {"phrasebook": "", "copy": ""})
    with pytest.raises(ConfigError, match=r"found 'phrasebok'; did you mean phrasebook\?"):
        load_recipe("phrasebok")
    with pytest.raises(ConfigError, match="known: phrasebook, copy"):
        load_recipe("xyzzy")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.learning_rate=nan", "training.learning_rate: expected a finite number or 'noam', found nan"),
        ("training.learning_rate=0", "training.learning_rate: expected a number greater than 0 or 'noam', found 0"),
        ("training.max_grad_norm=inf", "training.max_grad_norm: expected a finite number, found inf"),
        ("training.max_steps=true", "training.max_steps: expected a whole number, found True"),
        ("training.max_steps='3'", "training.max_steps: expected a whole number, found '3'"),
        ("training.seed=9223372036854775808", "training.seed: expected a number less than 9223372036854775808"),
        ("tokenizer.vocab_size=100000000", "tokenizer.vocab_size: expected a number less than or equal to 1000000"),
        ("tokenizer.joint=1", "tokenizer.joint: expected true or false, found 1"),
        ("model.n_encoder_layers=10000000", "model.n_encoder_layers: expected a number less than or equal to 1000"),
        ("model.preset=[1]", "expected the name of a preset, found [1]"),
        ("decoding.length_penalty=1e300", "decoding.length_penalty: expected a number less than or equal to 10"),
        ("decoding.beam_size=1000000", "decoding.beam_size: expected a number less than or equal to 1024"),
        ("decoding.min_length=256", "expected decoding.min_length below decoding.max_length, found 256 and 256"),
    ],
)
def test_absurd_values_are_refused(write: Load, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        write(DATA, override)
    assert message in str(caught.value)
    assert f"--set {override}: " in str(caught.value) and "renamed" not in str(caught.value)


@pytest.mark.parametrize("override", ["data.generate.n_train=1000000000000", "data.generate.max_length=1000000000"])
def test_more_than_can_be_generated_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="expected a number less than or equal to"):
        load_recipe("copy", [override])


LANGUAGES = """[data]
root = "x"

[[data.languages]]
tag = "de"
train = { source = "train.en", target = "train.de" }

[[data.languages]] # another
tag = "fr"
train = { source = "train.en", target = "train.fr" }
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('tag = "fr"', 'tag = "de"', "my.toml:1: data: data.languages: expected distinct tags, found 'de' twice"),
        ('tag = "fr"', 'tag = "f r"', "my.toml:9: data.languages.1.tag: expected 1 to 32 letters, digits, - and _, found 'f r'"),
        ('tag = "fr"', 'tag = ""', "my.toml:9: data.languages.1.tag: expected 1 to 32 letters"),
        ('tag = "fr"', "", "my.toml:8: missing field data.languages.1.tag (name of the language"),
        ('source = "train.en", target = "train.fr"', 'sorce = "x"', "my.toml:10: unknown field data.languages.1.train.sorce; did you mean"),
        ('tag = "fr"', 'tag = "fr"\ntrian = 3', "my.toml:10: unknown field data.languages.1.trian; did you mean data.languages.1.train?"),
        ('tag = "fr"', 'tag = "fr"\ngenerate = "copi"', "my.toml:10: data.languages.1.generate: expected one of 'phrasebook', 'copy'"),
        ('tag = "fr"', 'tag = "fr"\ngenerate = "copy"', "my.toml:8: data.languages.1: expected exactly one of train and generate for 'fr'"),
        ('root = "x"', 'train = { source = "a", target = "b" }', "my.toml:1: data: expected exactly one of data.train, data.generate and"),
        (
            'root = "x"',
            'valid = { source = "a", target = "b" }',
            "my.toml:1: data: data.languages includes its own valid data; remove data.val",
        ),
        (
            'root = "x"',
            "sampling_temperature = 0.5",
            "my.toml:2: data.sampling_temperature: expected a number greater than or equal to 1, found 0.5",
        ),
    ],
)
def test_messages_about_languages(write: Load, old: str, new: str, expected: str) -> None:
    assert message(write, LANGUAGES.replace(old, new)).startswith(expected)


def test_lists_of_tables_are_dumped_whole(write: Load) -> None:
    languages = write(LANGUAGES + "[data.languages.valid]\nsource = 'v.en'\ntarget = 'v.fr'\n")
    patterns = write(
        DATA, 'model.attention.pattern=["window", { kind = "any", patterns = ["full", { kind = "not", patterns = "global" }] }]'
    )
    for recipe in (languages, patterns):
        assert write(dump_recipe(recipe)) == recipe
