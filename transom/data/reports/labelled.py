"""What is known of labelled texts before step 1: sizes, classes, lengths, doubles, contradictions, overlap, symbols never seen."""

from collections.abc import Sequence
from dataclasses import dataclass

from transom.data.labeled.labelled import LabelledLoader
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.reports.report import (
    Distribution,
    Report,
    Row,
    class_counts,
    class_shares,
    contradictions,
    counted,
    distribution,
    overlaps,
    rare_classes,
    sizes,
    sizes_told,
    told,
    unseen_in,
)
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class LabelledReport(Report):
    """The facts of the texts.

    Attributes:
        texts: for each split its size, origin and doubles.
        classes: for each split the number of texts of each class.
        tokens: for each split the distribution of lengths in tokens, without special symbols.
        longer: for training and validation the texts of more tokens than the model reads, and how many of them are left out.
        unseen: for each split but training's, the symbols that training never shows.
    """

    texts: dict[str, Row]
    classes: dict[str, dict[str, int]]
    tokens: dict[str, Distribution]
    longer: dict[str, Row]
    unseen: dict[str, Row]

    def figures(self) -> list[str]:
        """Give all but the problems for people."""
        told_sizes = sizes_told(self.texts, "text")
        return [
            line
            for name, size in told_sizes.items()
            for line in (size, f"  classes: {class_shares(self.classes[name])}", f"  tokens: {told(self.tokens[name])}")
        ]


def report_labelled(splits: Splits[Pairs], classes: Sequence[str], tokenizer: Tokenizer, loader: LabelledLoader) -> LabelledReport:
    """Examine the texts of a run.

    Args:
        splits: all texts, each with its class as target.
        classes: by number.
        tokenizer: of the texts.
        loader: of the training texts.
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.source for name, part in parts.items()}
    rows = {name: encode(tokenizer, texts) for name, texts in keys.items()}
    counts = class_counts({name: part.target for name, part in parts.items()}, classes)
    longer: dict[str, Row] = {
        "train": {"texts": loader.n_longer, "left out": len(train) - loader.n_samples},
        "valid": {"texts": sum(len(row) + 1 > loader.max_seq_len for row in rows["valid"]), "left out": 0},
    }
    return LabelledReport(
        problems=[
            *contradictions(train.source, train.target, train.line, "text", "class than the same text before, lines"),
            *(
                f"{name}: {counted(int(of_part['texts']), 'text')} longer than the {loader.max_seq_len} tokens that the model reads;"
                f" {'they are left out' if of_part['left out'] else 'their beginning stands for them'}"
                for name, of_part in longer.items()
                if of_part["texts"]
            ),
            *overlaps(keys, "text"),
            *rare_classes(counts["train"], "text"),
        ],
        texts=sizes(parts, keys, "text"),
        classes=counts,
        tokens={name: distribution(of_part) for name, of_part in rows.items()},
        longer=longer,
        unseen=unseen_in(tokenizer, rows),
    )
