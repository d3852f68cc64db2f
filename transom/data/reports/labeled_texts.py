"""Data report on labeled texts, with sizes, classes, lengths, duplicates, contradictory labels, overlap of splits and unseen symbols."""

from collections.abc import Sequence

from transom.data.labeled.labeled_texts import LabeledTextLoader
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer


def report_labeled_texts(splits: Splits[Pairs], classes: Sequence[str], tokenizer: Tokenizer, loader: LabeledTextLoader) -> DataReport:
    """Examine the labeled texts of a run and return a data report.

    Args:
        splits: texts of all splits, as pairs of a text and its class.
        classes: names of the classes by index.
        tokenizer: tokenizer of the texts.
        loader: loader of the training texts.

    Returns:
        A report with these statistics:

        - ``texts``: size, origin and number of duplicates of each split.
        - ``classes``: number of texts of each class in each split.
        - ``tokens``: distribution of the lengths of each split's texts, in tokens without special tokens.
        - ``too_long``: number of texts longer than the context window in the training and validation splits, and how many of these texts
          are dropped.
        - ``unseen``: symbols of each split other than training that are absent from the training data.
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.source for name, part in parts.items()}
    rows = {name: encode(tokenizer, texts) for name, texts in keys.items()}
    counts = findings.class_counts({name: part.target for name, part in parts.items()}, classes)
    tokens = {name: findings.length_distribution(of_part) for name, of_part in rows.items()}
    longer: dict[str, findings.SplitStatistics] = {
        "train": {"texts": loader.n_too_long, "dropped": len(train) - loader.n_samples},
        "valid": {"texts": sum(len(row) + 1 > loader.max_seq_len for row in rows["valid"]), "dropped": 0},
    }
    problems = [
        *findings.contradiction_problems(
            train.source, train.target, train.line_number, "text", "another class than an earlier equal text: lines"
        ),
        *(
            f"{name}: {findings.count_noun(int(of_part['texts']), 'text')} longer than the {loader.max_seq_len} tokens of the context"
            f" window; they are {'dropped' if of_part['dropped'] else 'truncated'}"
            for name, of_part in longer.items()
            if of_part["texts"]
        ),
        *findings.overlap_problems(keys, "text"),
        *findings.rare_class_problems(counts["train"], "text"),
    ]
    texts, unseen = findings.split_sizes(parts, keys, "text"), findings.unseen_by_split(tokenizer, rows)

    def details(name: str) -> list[str]:
        return [f"classes: {findings.format_class_fractions(counts[name])}", f"tokens: {findings.format_distribution(tokens[name])}"]

    statistics = {"texts": texts, "classes": counts, "tokens": tokens, "too_long": longer, "unseen": unseen}
    return DataReport(problems, statistics, findings.summarize_sizes(texts, "text", details), findings.reading_notes(parts))
