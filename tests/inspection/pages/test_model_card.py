import re
import shlex
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from transom.config.data import PairFilesConfig, PhrasebookConfig
from transom.config.recipe import dump_recipe
from transom.inspection.pages.markup import escape_control_characters
from transom.inspection.pages.model_card import render_model_card
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary
from transom.tasks.translation.schema import TranslationDataConfig


def parts(text: str) -> list[tuple[str, str]]:
    """Read Markdown as (kind, content) of blocks and of what stands within them."""
    blocks = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    return [(token.type, token.content) for block in blocks for token in [block, *(block.children or [])]]


def test_the_card_states_what_the_facts_state(run: RunSummary) -> None:
    text = render_model_card(run)
    for said in (
        "2,912,448 parameters",
        "an encoder of 3 layers, a decoder of 3 layers",
        "layernorm, placed post; positions sinusoidal; feed-forward relu",
        "BLEU **39.61** on `test_2016_flickr`, signature `nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.1`",
        "perplexity 5.132, BLEU 38.36, chrF 60.95, at step 5,000",
        "6,000 steps in 42 min 14 s",
        "2 steps skipped",
        "- training: `train.en`, `train.de`",
        "- `bf16: this CPU multiplies bf16 in hardware (amx_bf16)`",
    ):
        assert said in text


def test_case_is_said_to_be_ignored_where_the_model_has_none(run: RunSummary) -> None:
    lowercase = run.recipe.tokenizer.model_copy(update={"lowercase": True})
    said = [
        render_model_card(replace(run, recipe=run.recipe.model_copy(update={"tokenizer": each})))
        for each in (run.recipe.tokenizer, lowercase)
    ]
    assert [", case-insensitive)" in text for text in said] == [False, True]


def test_every_figure_on_the_card_is_in_the_facts(run: RunSummary) -> None:
    body = render_model_card(replace(run, metrics=[], test_scores=(), machine_notes=(), data={})).split("## Recipe")[0]
    model = run.recipe.model
    known = {run.n_parameters, 3, model.d_model, model.n_heads, 48, model.d_ff, model.max_seq_len, 42, 14, 1, 0}
    assert {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", body.replace("multi30k", ""))} <= known
    assert "This card has no test scores." in body


def test_the_recipe_stands_whole(run: RunSummary) -> None:
    assert ("fence", dump_recipe(run.recipe)) in [(kind, content) for kind, content in parts(render_model_card(run)) if "task =" in content]


def test_folders_of_this_machine_are_not_told(run: RunSummary) -> None:
    pairs = PairFilesConfig(source="/srv/ada/secret/train.en", target="train.de")
    data = TranslationDataConfig(root="/srv/ada/project", train=pairs)
    training = run.recipe.training.model_copy(update={"init_from": "/srv/ada/runs/before"})
    elsewhere = replace(run, recipe=run.recipe.model_copy(update={"data": data, "training": training}))
    text = render_model_card(elsewhere)
    assert all("/srv" not in told and "ada" not in told.replace("adam", "") for told in (text, render_report(elsewhere)))
    assert "- training: `train.en`, `train.de`" in text and 'root = "project"' in text and 'init_from = "before"' in text


def test_vocabulary_sizes_once_known(run: RunSummary) -> None:
    model = run.recipe.model.model_copy(update={"source_vocab_size": 8000, "target_vocab_size": 8000})
    recipe = run.recipe.model_copy(update={"model": model})
    assert "joint vocabulary (8,000 symbols)" in render_model_card(replace(run, recipe=recipe))
    apart = recipe.tokenizer.model_copy(update={"joint": False})
    assert "(8,000 and 8,000 symbols)" in render_model_card(replace(run, recipe=recipe.model_copy(update={"tokenizer": apart})))


def test_generated_data_and_a_split_are_said(run: RunSummary) -> None:
    generated = run.recipe.model_copy(update={"data": TranslationDataConfig(generate=PhrasebookConfig())})
    assert '- generated: `{"kind":"phrasebook","n_train":50000' in render_model_card(replace(run, recipe=generated))
    split = run.recipe.model_copy(update={"data": TranslationDataConfig(train=PairFilesConfig(pairs="all.tsv"))})
    assert "- training: `all.tsv`\n- validation: 1% of the training pairs, held out" in render_model_card(replace(run, recipe=split))


TEXTS = st.text(st.one_of(st.sampled_from("`*_[](){}<>#|!&\\\n\x1b $'\""), st.characters(codec="utf-8")), min_size=1, max_size=30).filter(
    lambda text: text != "none" and not text.startswith("/")  # in a recipe no text, and a path of which the card shows the name only
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(TEXTS)
def test_no_text_takes_effect(run: RunSummary, text: str) -> None:
    data = TranslationDataConfig(train=PairFilesConfig(source=text, target="b"))
    hostile = replace(run, name=text, recipe=run.recipe.model_copy(update={"data": data}), data={"problems": [text]}, machine_notes=(text,))
    found = parts(render_model_card(hostile))
    assert {kind for kind, _ in found} == {kind for kind, _ in parts(render_model_card(run))}
    assert sum(kind == "code_inline" and content.strip() == escape_control_characters(text).strip() for kind, content in found) >= 3
    command = next(content for kind, content in found if kind == "fence" and content.startswith("transom translate"))
    assert shlex.split(command)[2] == escape_control_characters(text)
