import re
import shlex
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from transom.config.data import PairFiles, Phrasebook
from transom.config.recipe import dump_recipe
from transom.inspection.card import card
from transom.inspection.facts import Facts
from transom.inspection.markup import visible
from transom.inspection.report import report
from transom.tasks.translation.schema import TranslationData


def parts(text: str) -> list[tuple[str, str]]:
    """Read Markdown as (kind, content) of blocks and of what stands within them."""
    blocks = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [(token.type, token.content) for block in blocks for token in [block, *(block.children or [])]]


def test_the_card_states_what_the_facts_state(facts: Facts) -> None:
    text = card(facts)
    for said in (
        "2,912,448 parameters",
        "an encoder of 3 layers, a decoder of 3 layers",
        "layernorm, placed post; positions sinusoidal; feed-forward relu",
        "BLEU **39.61** on `test_2016_flickr`, signature `nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.1`",
        "perplexity 5.132, BLEU 38.36, chrF 60.95, at step 5,000",
        "6,000 steps in 42 min 14 s",
        "2 steps skipped",
        "- training: `train.en`, `train.de`",
        "- `bf16: this processor multiplies it in hardware (amx_bf16)`",
    ):
        assert said in text


def test_case_is_said_to_be_ignored_where_the_model_has_none(facts: Facts) -> None:
    lowercase = facts.recipe.tokenizer.model_copy(update={"lowercase": True})
    said = [
        card(replace(facts, recipe=facts.recipe.model_copy(update={"tokenizer": each}))) for each in (facts.recipe.tokenizer, lowercase)
    ]
    assert [", case-insensitive)" in text for text in said] == [False, True]


def test_every_figure_on_the_card_is_in_the_facts(facts: Facts) -> None:
    body = card(replace(facts, metrics=[], scores=(), machine=(), data={})).split("## Recipe")[0]
    model = facts.recipe.model
    known = {facts.n_parameters, 3, model.d_model, model.n_heads, 48, model.d_ff, model.max_seq_len, 42, 14, 1, 0}
    assert {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", body.replace("multi30k", ""))} <= known
    assert "None was measured.\n\nNo test score was measured for this card." in body


def test_the_recipe_stands_whole(facts: Facts) -> None:
    assert ("fence", dump_recipe(facts.recipe)) in [(kind, content) for kind, content in parts(card(facts)) if "task =" in content]


def test_folders_of_this_machine_are_not_told(facts: Facts) -> None:
    pairs = PairFiles(source="/srv/ada/secret/train.en", target="train.de")
    data = TranslationData(root="/srv/ada/project", train=pairs)
    training = facts.recipe.training.model_copy(update={"start_from": "/srv/ada/runs/before"})
    elsewhere = replace(facts, recipe=facts.recipe.model_copy(update={"data": data, "training": training}))
    text = card(elsewhere)
    assert all("/srv" not in told and "ada" not in told.replace("adam", "") for told in (text, report(elsewhere)))
    assert "- training: `train.en`, `train.de`" in text and 'root = "project"' in text and 'start_from = "before"' in text


def test_vocabulary_sizes_once_known(facts: Facts) -> None:
    model = facts.recipe.model.model_copy(update={"source_vocab_size": 8000, "target_vocab_size": 8000})
    recipe = facts.recipe.model_copy(update={"model": model})
    assert "one vocabulary for both sides (8,000 symbols)" in card(replace(facts, recipe=recipe))
    apart = recipe.tokenizer.model_copy(update={"joint": False})
    assert "(8,000 and 8,000 symbols)" in card(replace(facts, recipe=recipe.model_copy(update={"tokenizer": apart})))


def test_generated_data_and_a_split_are_said(facts: Facts) -> None:
    generated = facts.recipe.model_copy(update={"data": TranslationData(generate=Phrasebook())})
    assert '- generated: `{"kind":"phrasebook","n_train":50000' in card(replace(facts, recipe=generated))
    split = facts.recipe.model_copy(update={"data": TranslationData(train=PairFiles(pairs="all.tsv"))})
    assert "- training: `all.tsv`\n- validation: 1 % of the training pairs, split off by hash" in card(replace(facts, recipe=split))


TEXTS = st.text(st.one_of(st.sampled_from("`*_[](){}<>#|!&\\\n\x1b $'\""), st.characters(codec="utf-8")), min_size=1, max_size=30).filter(
    lambda text: text != "none"  # in a recipe that is no text
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(TEXTS)
def test_no_text_takes_effect(facts: Facts, text: str) -> None:
    data = TranslationData(train=PairFiles(source=text, target="b"))
    hostile = replace(facts, name=text, recipe=facts.recipe.model_copy(update={"data": data}), data={"problems": [text]}, machine=(text,))
    found = parts(card(hostile))
    assert {kind for kind, _ in found} == {kind for kind, _ in parts(card(facts))}
    assert sum(kind == "code_inline" and content.strip() == visible(text).strip() for kind, content in found) >= 3
    command = next(content for kind, content in found if kind == "fence" and content.startswith("transom translate"))
    assert shlex.split(command)[2] == visible(text)
