"""The schema of recurrent networks: how it is chosen in a recipe, what fits together, and one clear line where it does not."""

import pytest

from transom.config.recipe import dump_recipe, load_recipe
from transom.config.recurrent import (
    AdditiveAttentionConfig,
    GruConfig,
    LuongAttentionConfig,
    NoSourceAttentionConfig,
    RecurrentSeq2SeqConfig,
)
from transom.errors import ConfigError
from transom.planning.parameters import count_parameters


def model(*overrides: str) -> RecurrentSeq2SeqConfig:
    recipe = load_recipe("phrasebook-lstm", overrides)[0].model
    assert isinstance(recipe, RecurrentSeq2SeqConfig)
    return recipe


def test_components_in_all_spellings() -> None:
    assert model("model.cell=gru").cell == GruConfig()
    assert model("model.attention=none").attention == NoSourceAttentionConfig()
    assert model("model.attention=luong", "model.attention.score=dot").attention == LuongAttentionConfig(score="dot")
    assert model("model.attention.d_attention=7").attention == AdditiveAttentionConfig(d_attention=7)
    assert load_recipe("phrasebook", ["model.d_model=64"])[0].model.kind == "seq2seq"


def test_another_kind_of_network_begins_with_its_own_defaults() -> None:
    recipe = load_recipe("multi30k-en-de", ["model.kind=recurrent-seq2seq", "model.d_model=64"])[0]
    assert recipe.model == RecurrentSeq2SeqConfig(d_model=64)


def test_what_is_dumped_loads_as_the_same(tmp_path) -> None:
    recipe = load_recipe("phrasebook-lstm", ["model.attention={ kind = 'luong', input_feeding = false }", "model.d_embedding=160"])[0]
    (tmp_path / "r.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "r.toml")[0] == recipe


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("phrasebook-lstm", ["model.d_modle=3"], "unknown field model.d_modle; did you mean model.d_model?"),
        ("phrasebook-lstm", ["model.attention={ kind = 'luong', scor = 'dot' }"], "did you mean model.attention.score?"),
        (
            "phrasebook-lstm",
            ["model.attention.score=dot"],
            "unknown field model.attention.score; this field requires model.attention.kind = 'luong'",
        ),
        ("phrasebook-lstm", ["model.n_heads=4"], "unknown field model.n_heads; this field requires model.kind = 'seq2seq'"),
        ("phrasebook", ["model.kind=recurrent-seq2seq"], "model.tie_embeddings = 'all' needs tokenizer.joint = true"),
        ("phrasebook", ["model.kind=recurent"], "model.kind: expected one of 'seq2seq', 'recurrent-seq2seq', found 'recurent'"),
        ("phrasebook-lstm", ["model.cell=lst"], "model.cell: expected one of 'rnn', 'lstm', 'gru', found 'lst'"),
        ("phrasebook-lstm", ["model.d_model=7"], "a bidirectional encoder requires an even d_model, found 7"),
        ("phrasebook-lstm", ["model.d_embedding=7"], "tied embeddings require d_embedding = d_model, found 7 and 160"),
        ("phrasebook-lstm", ["model.attention={ kind = 'luong', d_attention = 7 }"], "d_attention requires score 'concat'"),
        ("phrasebook-lstm", ["model.tie_embeddings=all"], "model.tie_embeddings = 'all' needs tokenizer.joint = true"),
    ],
)
def test_messages(name: str, overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(name, overrides)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_the_two_recipes_of_multi30k_differ_in_their_model_only_and_are_of_one_size() -> None:
    ours, theirs = (load_recipe(f"multi30k-{name}")[0] for name in ("lstm", "en-de"))
    assert ours.model_copy(update={"model": theirs.model}) == theirs
    sizes = {"source_vocab_size": 10_000, "target_vocab_size": 10_000}
    ours_total, theirs_total = (count_parameters(recipe.model.model_copy(update=sizes)).total for recipe in (ours, theirs))
    assert abs(ours_total - theirs_total) < 0.02 * theirs_total


def test_the_two_recipes_of_shakespeare_differ_in_their_model_only_and_are_of_one_size() -> None:
    ours, theirs = (load_recipe(f"shakespeare-{name}")[0] for name in ("lstm", "char"))
    assert ours.model_copy(update={"model": theirs.model}) == theirs and ours.model.max_seq_len == theirs.model.max_seq_len
    ours_total, theirs_total = (count_parameters(recipe.model.model_copy(update={"vocab_size": 69})).total for recipe in (ours, theirs))
    assert abs(ours_total - theirs_total) < 0.02 * theirs_total


def test_a_size_by_hand() -> None:
    """An LSTM has 4 (d (d_in + d) + 2 d) weights; the attention W, U, b and v; the maxout map T [s; y; c]."""
    c = RecurrentSeq2SeqConfig(d_model=10, source_vocab_size=7, target_vocab_size=7)
    half, whole = 2 * 4 * (5 * 15 + 2 * 5), 4 * (10 * 30 + 2 * 10)
    start, score, maxout = 2 * 10 * 11, 2 * 100 + 10 + 10, 20 * 31
    assert count_parameters(c).total == 7 * 10 + half + whole + start + score + maxout
