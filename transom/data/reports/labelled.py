"""What is known of labelled texts before step 1: sizes, classes, lengths, doubles, contradictions, overlap, symbols never seen."""

from collections.abc import Sequence

from transom.data.labeled.labelled import LabelledLoader
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.reports import findings
from transom.data.reports.report import Report
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer


def report_labelled(splits: Splits[Pairs], classes: Sequence[str], tokenizer: Tokenizer, loader: LabelledLoader) -> Report:
    """Examine the texts of a run.

    Args:
        splits: all texts, each with its class as target.
        classes: by number.
        tokenizer: of the texts.
        loader: of the training texts.

    Returns:
        For each split its size, origin and doubles (``texts``), the number of texts of each class (``classes``) and the distribution of
        lengths in tokens, without special symbols (``tokens``); for training and validation the texts of more tokens than the model reads,
        and how many of them are left out (``longer``); for each split but training's, the symbols that training never shows (``unseen``).
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.source for name, part in parts.items()}
    rows = {name: encode(tokenizer, texts) for name, texts in keys.items()}
    counts = findings.class_counts({name: part.target for name, part in parts.items()}, classes)
    tokens = {name: findings.distribution(of_part) for name, of_part in rows.items()}
    longer: dict[str, findings.Row] = {
        "train": {"texts": loader.n_longer, "left out": len(train) - loader.n_samples},
        "valid": {"texts": sum(len(row) + 1 > loader.max_seq_len for row in rows["valid"]), "left out": 0},
    }
    problems = [
        *findings.contradictions(train.source, train.target, train.line, "text", "class than the same text before, lines"),
        *(
            f"{name}: {findings.counted(int(of_part['texts']), 'text')} longer than the {loader.max_seq_len} tokens that the model reads;"
            f" {'they are left out' if of_part['left out'] else 'their beginning stands for them'}"
            for name, of_part in longer.items()
            if of_part["texts"]
        ),
        *findings.overlaps(keys, "text"),
        *findings.rare_classes(counts["train"], "text"),
    ]
    texts, unseen = findings.sizes(parts, keys, "text"), findings.unseen_in(tokenizer, rows)

    def details(name: str) -> list[str]:
        return [f"classes: {findings.class_shares(counts[name])}", f"tokens: {findings.told(tokens[name])}"]

    facts = {"texts": texts, "classes": counts, "tokens": tokens, "longer": longer, "unseen": unseen}
    return Report(problems, facts, findings.summary(texts, "text", details))
