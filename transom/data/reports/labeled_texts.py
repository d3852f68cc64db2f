"""Data report on labeled texts, with sizes, classes, lengths, duplicates, contradictory labels, overlap of splits and unseen symbols."""

from collections.abc import Sequence

from transom.data.labeled.class_labels import split_labels
from transom.data.labeled.labeled_texts import LabeledTextLoader, LabeledTexts
from transom.data.labeled.text_pairs import encode_texts, n_tokens
from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.files.message import phrase


def report_labeled_texts(
    splits: Splits[LabeledTexts], classes: Sequence[str], tokenizer: Tokenizer, loader: LabeledTextLoader
) -> DataReport:
    """Examine the texts of a run.

    Args:
        splits: texts of all splits, as pairs of a text and its class.
        classes: names of the classes by index.
        tokenizer: tokenizer of the texts.
        loader: loader of the training texts.

    Returns:
        A report with the statistics: per split, size, origin and duplicates (``texts``), number of texts per class (``classes``) and the
        distribution of lengths in tokens without special tokens (``tokens``); for training and validation, the texts longer than the
        context window and how many of them are dropped (``too_long``); per split except training, the symbols absent from the training data
        (``unseen``). For texts with several labels, also their number per text (``labels_per_text``).
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.keys for name, part in parts.items()}
    rows = {name: encode_texts(tokenizer, part.inputs) for name, part in parts.items()}
    counts = findings.class_counts({name: _labels(part) for name, part in parts.items()}, classes)
    tokens = {name: findings.length_distribution(of_part) for name, of_part in rows.items()}
    longer: dict[str, findings.SplitStatistics] = {
        "train": {"texts": loader.n_too_long, "dropped": len(train) - loader.n_samples},
        "valid": {"texts": sum(n_tokens(row, tokenizer.special_tokens) > loader.max_seq_len for row in rows["valid"]), "dropped": 0},
    }
    problems = [
        *findings.contradiction_problems(
            keys["train"],
            train.target,
            train.line_number,
            "text",
            phrase("data.other_class", "another class than an earlier equal text: lines"),
        ),
        *(
            phrase(
                *(_DROPPED if of_part["dropped"] else _TRUNCATED),
                name=findings.split_name(name),
                samples=findings.count_noun(int(of_part["texts"]), "text"),
                most=str(loader.max_seq_len),
            )
            for name, of_part in longer.items()
            if of_part["texts"]
        ),
        *findings.overlap_problems(keys, "text"),
        *findings.rare_class_problems(counts["train"], "text"),
    ]
    texts, unseen = findings.split_sizes(parts, keys, "text"), findings.unseen_by_split(tokenizer, rows)

    def details(name: str) -> list[str]:
        per_text = [f"labels per text: {_format_labels_per_text(parts[name])}"] if train.multi_label else []
        shares = findings.format_class_fractions(counts[name], len(parts[name]) if train.multi_label else None)
        return [f"classes: {shares}", *per_text, f"tokens: {findings.format_distribution(tokens[name])}"]

    statistics = {"texts": texts, "classes": counts, "tokens": tokens, "too_long": longer, "unseen": unseen}
    if train.multi_label:
        statistics["labels_per_text"] = {name: _labels_per_text(part) for name, part in parts.items()}
    return DataReport(problems, statistics, findings.summarize_sizes(texts, "text", details), findings.reading_notes(parts))


_DROPPED = ("data.long_dropped", "{name}: {samples} longer than the {most} tokens of the context window; they are dropped")
_TRUNCATED = ("data.long_truncated", "{name}: {samples} longer than the {most} tokens of the context window; they are truncated")


def _labels(texts: LabeledTexts) -> list[str]:
    """Return all labels of all texts."""
    return [label for joined in texts.target for label in split_labels(joined)] if texts.multi_label else texts.target


def _labels_per_text(texts: LabeledTexts) -> dict[str, float]:
    n_labels = [len(split_labels(joined)) for joined in texts.target]
    return {"mean": sum(n_labels) / len(n_labels), "max": max(n_labels), "none": n_labels.count(0), "several": sum(n > 1 for n in n_labels)}


def _format_labels_per_text(texts: LabeledTexts) -> str:
    found = _labels_per_text(texts)
    return f"{found['mean']:.2f} on average, at most {found['max']:,}; {found['several']:,} texts have several, {found['none']:,} none"
