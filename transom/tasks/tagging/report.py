"""Data report of tagged sentences, and the section of the run report that shows predicted tags."""

from array import array
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.files.message import phrase
from transom.inspection.messages.tables import message
from transom.inspection.pages.markup import node
from transom.inspection.pages.run_summary import RunSummary
from transom.tasks.tagging.entities import OUTSIDE, entities_of, scheme_of
from transom.tasks.tagging.loader import TaggedLoader, split_sentences
from transom.tasks.tagging.tagged_files import TaggedSentences


def report_tagged(
    splits: Splits[TaggedSentences], classes: Sequence[str], tokenizer: Tokenizer, loader: TaggedLoader, max_tokens: int
) -> DataReport:
    """Build the data report of tagged sentences.

    Args:
        splits: training, validation and test sentences.
        classes: all tags; the label of a tag is its index.
        tokenizer: the tokenizer.
        loader: loader of the training sentences.
        max_tokens: maximum number of tokens per window, special tokens excluded.

    Returns:
        The data report, with these facts about each split. ``sentences`` contains its size, origin and duplicates. ``words`` contains the
        numbers of words and of converted IOB1 tags. ``classes`` contains the number of entities with each label, or of words with each tag.
        ``tokens`` contains the distribution of window lengths in tokens. ``unseen`` contains, for validation and test sentences, the
        symbols that do not occur in the training sentences.
    """
    parts = splits.parts
    keys = {name: part.texts for name, part in parts.items()}
    read = {name: loader.windows if name == "train" else split_sentences(part.words, tokenizer, max_tokens) for name, part in parts.items()}
    rows = {name: [array("i", window.tokens) for window in of_part] for name, of_part in read.items()}
    plain = scheme_of(classes) == "plain"
    labels = {name: [label for tags in part.tags for label in _labels(tags, plain)] for name, part in parts.items()}
    known = classes if plain else sorted({tag[2:] for tag in classes if tag != OUTSIDE})
    counts = findings.class_counts(labels, known)
    tokens = {name: findings.length_distribution(of_part) for name, of_part in rows.items()}
    words = {name: {"words": sum(map(len, part.words)), "converted": sum(part.n_converted or ())} for name, part in parts.items()}
    n_cut = {name: len(read[name]) - len(part) for name, part in parts.items()}
    tags_of_train = list(map(" ".join, splits.train.tags))
    problems = [
        *findings.contradiction_problems(
            keys["train"],
            tags_of_train,
            splits.train.describe_sample,
            "sentence",
            phrase("data.other_tags", "other tags than an earlier equal sentence:"),
        ),
        *(
            phrase(
                "data.more_windows",
                {
                    "one": "{name}: {n} more window than sentences, because some sentences exceed the context window of {most} tokens",
                    "other": "{name}: {n} more windows than sentences, because some sentences exceed the context window of {most} tokens",
                },
                name=findings.split_name(name),
                n=n,
                most=str(max_tokens + 1),
            )
            for name, n in n_cut.items()
            if n
        ),
        *findings.overlap_problems(keys, "sentence"),
        *findings.rare_class_problems(counts["train"], "word" if plain else "mention"),
    ]
    sentences, unseen = findings.split_sizes(parts, keys, "sentence"), findings.unseen_by_split(tokenizer, rows)

    def details(name: str) -> list[str]:
        n_converted = words[name]["converted"]
        shares = findings.format_class_fractions(counts[name]) if labels[name] else "none"
        return [
            f"words: {words[name]['words']:,}; {'tags' if plain else 'entities'}: {shares}",
            *([f"tags: {n_converted:,} I- tags that start an entity are read as B-, as in IOB2"] if n_converted else []),
            f"tokens: {findings.format_distribution(tokens[name])}",
        ]

    facts = {"sentences": sentences, "words": words, "classes": counts, "tokens": tokens, "unseen": unseen}
    return DataReport(problems, facts, findings.summarize_sizes(sentences, "sentence", details))


def _labels(tags: Sequence[str], plain: bool) -> list[str]:
    return list(tags) if plain else [entity.label for entity in entities_of(tags)]


def render_tagged_sentences(run: RunSummary) -> list[Element]:
    """Render validation sentences with the tags that the saved weights predict, and with the expected tags of incorrect predictions."""
    shown = [sample for sample in run.samples if "tagged" in sample]
    note = node("p", message("samples.tags"), class_="soft")
    return [note, *(node("div", *_render_sentence(sample), class_="sample") for sample in shown)] if shown else []


def _render_sentence(sample: Mapping[str, str]) -> list[Element | str]:
    pieces, columns = list[Element | str](), (sample[name].split("\n") for name in ("words", "expected", "tagged"))
    for word, expected, found in zip(*columns, strict=True):
        if found == expected == OUTSIDE:
            pieces.append(f"{word} ")
            continue
        pieces += [node("mark", word), " ", node("span", found, class_="soft tag" if found == expected else "tag")]
        pieces += [" "] if found == expected else [", ", message("samples.not_tag"), " ", node("span", expected, class_="tag"), " "]
    return pieces
