"""What is known of tagged sentences before step 1: sizes, tags, lengths, doubles, contradictions, overlap, symbols never seen."""

from array import array
from collections.abc import Sequence

from transom.data.labeled.entities import OUTSIDE, entities_of, scheme_of
from transom.data.labeled.tagged import Tagged, TaggedLoader, windows
from transom.data.reports import findings
from transom.data.reports.report import Report
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer


def report_tagged(splits: Splits[Tagged], classes: Sequence[str], tokenizer: Tokenizer, loader: TaggedLoader, most: int) -> Report:
    """Examine the sentences of a run.

    Args:
        splits: all sentences.
        classes: the tags by number.
        tokenizer: of the words.
        loader: of the training sentences.
        most: tokens that the model reads, special symbols not included.

    Returns:
        For each split its size, origin and doubles (``sentences``), its words and the tags I- that were read as B- (``words``), the number
        of entities of each label, or of words of each tag (``classes``), and the distribution of lengths in tokens (``tokens``); for each
        split but training's, the symbols that training never shows (``unseen``).
    """
    parts = splits.parts
    keys = {name: part.texts for name, part in parts.items()}
    read = {name: loader.windows if name == "train" else windows(part.words, tokenizer, most) for name, part in parts.items()}
    rows = {name: [array("i", window.tokens) for window in of_part] for name, of_part in read.items()}
    plain = scheme_of(classes) == "plain"
    labels = {name: [label for tags in part.tags for label in _labels(tags, plain)] for name, part in parts.items()}
    known = classes if plain else sorted({tag[2:] for tag in classes if tag != OUTSIDE})
    counts, noun = findings.class_counts(labels, known), "word" if plain else "entity"
    tokens = {name: findings.distribution(of_part) for name, of_part in rows.items()}
    words = {name: {"words": sum(map(len, part.words)), "read as B-": sum(part.repairs or ())} for name, part in parts.items()}
    cut = {name: len(read[name]) - len(part) for name, part in parts.items()}
    spelled = list(map(" ".join, splits.train.tags))
    problems = [
        *findings.contradictions(keys["train"], spelled, splits.train.place, "sentence", "tags than the same sentence before,"),
        *(
            f"{name}: {findings.counted(n, 'further window')} for sentences longer than the {most + 1} tokens that the model reads at once"
            for name, n in cut.items()
            if n
        ),
        *findings.overlaps(keys, "sentence"),
        *(problem.replace("entitys", "entities") for problem in findings.rare_classes(counts["train"], noun)),
    ]
    sentences, unseen = findings.sizes(parts, keys, "sentence"), findings.unseen_in(tokenizer, rows)

    def details(name: str) -> list[str]:
        n_repaired = words[name]["read as B-"]
        repaired = [f"tags: {n_repaired:,} I- that begin an entity are read as B-, as in IOB1"] if n_repaired else []
        shares = findings.class_shares(counts[name]) if labels[name] else "none"
        return [
            f"words: {words[name]['words']:,}; {'tags' if plain else 'entities'}: {shares}",
            *repaired,
            f"tokens: {findings.told(tokens[name])}",
        ]

    facts = {"sentences": sentences, "words": words, "classes": counts, "tokens": tokens, "unseen": unseen}
    return Report(problems, facts, findings.summary(sentences, "sentence", details))


def _labels(tags: Sequence[str], plain: bool) -> list[str]:
    return list(tags) if plain else [entity.label for entity in entities_of(tags)]
