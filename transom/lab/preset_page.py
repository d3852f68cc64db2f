"""Generate docs/presets.md, the published architectures beside our counts: ``python -m transom.lab.preset_page docs``."""

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from transom.config.model import DecoderConfig
from transom.config.presets import Preset, format_count, load_presets
from transom.lab.examples import ERRATUM, Example, load_articles, load_examples
from transom.planning.presets import compare_preset, estimate_parameters

HEAD = """# Published architectures

A preset is a published architecture: `--set model.preset=gpt2-medium` trains it on your text, `transom.build({"preset": "gpt2-medium"})`
builds it, and `transom recipes presets` lists all of them. Other fields of `[model]` override its fields. A recipe takes the sizes of its
vocabularies from its own tokenizer; this page counts with the published ones. The files are in `transom/presets/`, each with its source.
`make docs` writes this page, and tests check that it is current.

"Published" is the number of parameters that the source prints, and "ours" the number of elements in all tensors of the model that transom
builds on the meta device. A shared matrix is counted once. A component that the preset lacks is named with the parameters that it has in
the published model. Where the weights were released, ours and the missing components add up to exactly their number of parameters.
"""

LANGUAGE_MODELS = {
    "gpt": "gpt",
    "gpt2": "gpt2-xl",
    "gpt3": "gpt3-175b",
    "palm": "palm-540b",
    "gopher": "gopher-280b",
    "jurassic": "jurassic-1-178b",
    "lamda": "lamda-137b",
    "megatron": "megatron-turing-530b",
    "chinchilla": "chinchilla-70b",
    "llama": "llama-65b",
    "llama2": "llama-2-70b",
}
"""Rows of the table of language models in article 002, and their presets."""

TABLE_HEAD = """## The articles' table of language models

Article 002 prints parameters, training tokens and tokens per parameter of eleven language models (lines 1219 to 1229). The columns
"published" are the sources' numbers, and the last quotient is that of the published numbers. `transom worked-examples 002` checks every
number.

| model | parameters | published | ours | tokens | published | tokens per parameter | of the published numbers |
| --- | --- | --- | --- | --- | --- | --- | --- |"""

GPT3_HEAD = """## GPT-3's shapes in article 003

| quantity | article | preset `gpt3-175b` |
| --- | --- | --- |"""

FORMULA_HEAD = """## Formulas for the number of parameters

With n layers of width d and V symbols, a layer has about 4 d^2 weights of attention and 8 d^2 of a feed-forward network. Article 004
(lines 246 to 252) prints 2 V d + n (12 d^2 + 2 d), with an embedding and an output projection of their own. The percentages are the
errors of the formulas against the exact counts. Small models are embeddings to a large part, and those of GPT are shared with the output,
which the formula of the article counts twice. The formulas do not know grouped queries, experts, or feed-forward networks of another
width.

| preset | exact | 12 n d^2 | 12 n d^2 + V d | 2 V d + n (12 d^2 + 2 d) |
| --- | --- | --- | --- | --- |"""


def preset_page() -> str:
    """Return the content of docs/presets.md."""
    lines = [HEAD]
    families = [(source, list(presets)) for source, presets in groupby(load_presets().values(), key=lambda preset: preset.source)]
    for source, presets in sorted(families, key=lambda family: re.findall(r"\d{4}", family[0]) or ["9999"]):
        lines += _family(source, presets)
    return "\n".join([*lines, *_language_models(), "", *_gpt3(), "", *_formulas()]).rstrip() + "\n"


def _family(source: str, presets: list[Preset]) -> Iterator[str]:
    """Yield the section of the presets of one source, oldest first; remarks that all of them share come before their table."""
    yield f"## {source}"
    yield ""
    shared = [remark for remark in _remarks(presets[0]) if len(presets) > 1 and all(remark in _remarks(preset) for preset in presets)]
    if shared:
        yield from (" ".join(shared), "")
    yield "| preset | place | published | ours | difference | training tokens | remarks |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for preset in presets:
        found = compare_preset(preset)
        ours = f"{found.count.total:,}"
        if found.comparable != found.count.total:
            ours += f", without embeddings {found.comparable:,}"
        if preset.active_parameters:
            ours += f", per token {found.count.active:,}"
        difference = "" if found.difference is None else f"{found.difference:+.1%}"
        remarks = " ".join(remark for remark in _remarks(preset) if remark not in shared)
        cells = (f"`{preset.name}`", preset.section, _published(preset), ours, difference, format_count(preset.training_tokens), remarks)
        yield f"| {' | '.join(map(_cell, cells))} |"
    yield ""


def _published(preset: Preset) -> str:
    """Return the published count as text, with what it includes."""
    text = format_count(preset.parameters)
    if preset.counts != "all":
        text += f", {preset.counts}"
    return f"{text}, per token {format_count(preset.active_parameters)}" if preset.active_parameters else text


def _remarks(preset: Preset) -> list[str]:
    """Return sentences on a preset: fields outside of the model, missing components, and the reason of a difference."""
    fields = ", ".join(f"training.{name} = {value}" for name, value in preset.training.items())
    parts = (f"{each.component} ({each.parameters:,} parameters)" if each.parameters else each.component for each in preset.missing)
    missing = "; ".join(parts)
    remarks = [f"Set {fields}."] * bool(fields) + [f"Missing: {missing}."] * bool(missing)
    return remarks + [sentence for sentence in re.split(r"(?<=\.) (?=[A-Z])", preset.why) if sentence]


def _rounded(number: int) -> str:
    """Format a number with four digits.

    >>> _rounded(174_604_259_328)
    '174.6 billion'
    """
    return format_count(int(float(f"{number:.4g}")))


def _language_models() -> Iterator[str]:
    """Yield the articles' table of language models beside the published numbers, and its errors."""
    yield TABLE_HEAD
    presets, examples = load_presets(), load_examples()
    for name, preset_name in LANGUAGE_MODELS.items():
        preset = presets[preset_name]
        printed = {part: str(examples[f"002-{name}-{part}"].printed) for part in ("parameters", "billions", "ratio")}
        n, tokens, ours = preset.parameters, preset.training_tokens, compare_preset(preset).comparable
        assert n is not None
        ratio = f"{tokens / n:.2f}" if tokens else ""
        missing = sum(each.parameters for each in preset.missing)
        with_missing = f", with the missing components {_rounded(ours + missing)}" if missing else ""
        unit = "million" if name == "gpt" else "billion"
        counts = (f"{printed['parameters']} {unit}", _published(preset), _rounded(ours) + with_missing)
        trained = (f"{float(printed['billions']):g} billion", format_count(tokens) or "none", printed["ratio"], ratio)
        yield f"| `{preset_name}` | {' | '.join((*counts, *trained))} |"
    yield ""
    yield "The article is wrong, or its source prints no number, in these places:"
    yield ""
    yield from _table_errors(list(examples.values()))


def _table_errors(examples: list[Example]) -> Iterator[str]:
    """Yield what is wrong in the rows of the table, as judged in ``articles/002.json``."""
    rows = range(1219, 1230)
    for example in examples:
        if example.article == "002" and example.lines[0] in rows:
            reason = example.why or ("It follows from a wrong number." if example.verdict == ERRATUM else "")
            if reason or example.note:
                remarks = " ".join(remark for remark in (reason, example.note) if remark)
                yield f"- Line {example.lines[0]}, {example.quantity}, printed {example.printed}: {remarks}"
    for article in load_articles():
        for problem in article.conceptual:
            if article.number == "002" and problem.lines[0] in rows:
                yield f"- Line {problem.lines[0]}: {problem.problem}"


def _gpt3() -> Iterator[str]:
    """Yield the shapes of GPT-3 that article 003 prints, beside those of the preset."""
    yield GPT3_HEAD
    for quantity, printed, ours in gpt3_shapes():
        yield f"| {quantity} | {printed} | {ours} |"


def gpt3_shapes() -> list[tuple[str, str, str]]:
    """Return (quantity, number printed in article 003, number of the preset) for GPT-3's shapes."""
    config = load_presets()["gpt3-175b"].config()
    assert isinstance(config, DecoderConfig) and config.vocab_size
    d, vocab = config.d_model, config.vocab_size
    ours = {
        "vocab": f"{vocab}",
        "width": f"{d}",
        "context": f"{config.max_seq_len}",
        "embedding-count": f"{vocab * d / 1e6:.1f}",
        "head-width": f"{config.d_head}",
        "wq-shape": f"{d} x {config.d_head}",
        "qk-shape": f"{config.max_seq_len} x {config.d_head}",
        "scores-shape": f"{config.max_seq_len} x {config.max_seq_len}",
        "hidden-width": f"{config.d_ff}",
    }
    examples = [(load_examples()[f"003-{name}"], value) for name, value in ours.items()]
    printed = [" x ".join(map(str, each.printed)) if isinstance(each.printed, list) else each.printed for each, _ in examples]
    return [(each.quantity, text, value) for (each, value), text in zip(examples, printed, strict=True)]


def _formulas() -> Iterator[str]:
    """Yield the errors of the common formulas for each decoder."""
    yield FORMULA_HEAD
    for preset in load_presets().values():
        config = preset.config()
        if isinstance(config, DecoderConfig):
            exact = compare_preset(preset).count.total
            errors = " | ".join(f"{estimate / exact - 1:+.1%}" for estimate in estimate_parameters(config))
            yield f"| `{preset.name}` | {exact:,} | {errors} |"


def _cell(text: str) -> str:
    """Escape what Markdown would read as a cell's end."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (Path(sys.argv[1]) / "presets.md").write_text(preset_page(), "utf-8")
