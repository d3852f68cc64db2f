"""What is known of instructions before step 1: sizes, lengths, what is cut or left out, doubles, overlap, symbols never seen."""

from collections.abc import Mapping
from dataclasses import dataclass

from transom.data.labeled.instructions import InstructionLoader, Instructions
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.reports.report import (
    Distribution,
    Report,
    Row,
    contradictions,
    counted,
    distribution,
    overlaps,
    shown,
    sizes,
    sizes_told,
    told,
    unseen_in,
)
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class InstructionReport(Report):
    """The facts of the instructions.

    Attributes:
        instructions: for each split its size, origin and doubles.
        tokens: for each split and side the distribution of lengths in tokens, without special symbols.
        too_long: for training and validation, how many prompts lost their beginning and how many instructions are left out.
        unseen: for each split but training's, the symbols that training never shows.
        answer_share: of the tokens that training reads, those that are learnt from.
        padding_waste: share of the first epoch's tokens that is padding.
    """

    instructions: dict[str, Row]
    tokens: dict[str, Distribution]
    too_long: dict[str, dict[str, int]]
    unseen: dict[str, Row]
    answer_share: float
    padding_waste: float

    def figures(self) -> list[str]:
        """Give all but the problems for people."""
        lines = []
        for name, size in sizes_told(self.instructions, "instruction").items():
            lines.append(size)
            lines += [f"  {side} tokens: {told(self.tokens[f'{name} {side}'])}" for side in ("prompt", "answer")]
        return [
            *lines,
            f"learnt from: {self.answer_share:.1%} of the tokens, the answers and their ends; prompts are read only",
            f"padding: {self.padding_waste:.1%} of the tokens in the first epoch's batches",
        ]


def report_instructions(
    splits: Splits[Pairs], read: Mapping[str, Instructions], tokenizer: Tokenizer, loader: InstructionLoader
) -> InstructionReport:
    """Examine the instructions of a run.

    Args:
        splits: all instructions, the answer as target.
        read: those of training and validation as the model reads them, by the split's name.
        tokenizer: of both sides.
        loader: of the training instructions.
    """
    parts, train = splits.parts, splits.train
    both = {name: list(zip(part.source, part.target, strict=True)) for name, part in parts.items()}
    sides = {name: (encode(tokenizer, part.source), encode(tokenizer, part.target)) for name, part in parts.items()}
    too_long = [
        f"{name}: {counted(len(samples), 'instruction')} longer than the {loader.max_seq_len} tokens that the model reads; {fate}"
        f" ({shown([f'line {parts[name].line(i)}' for i in samples])})"
        for name, found in read.items()
        for samples, fate in ((found.truncated, "the end of the prompt stands for it"), (found.left_out, "left out"))
        if samples
    ]
    answers = sum(map(len, read["train"].answers)) + len(read["train"].answers)
    return InstructionReport(
        problems=[
            *contradictions(train.source, train.target, train.line, "prompt", "answer than before, lines"),
            *overlaps(both, "instruction"),
            *too_long,
        ],
        instructions=sizes(parts, both, "instruction"),
        tokens={
            f"{name} {side}": distribution(rows)
            for name, of_part in sides.items()
            for side, rows in zip(("prompt", "answer"), of_part, strict=True)
        },
        too_long={name: {"truncated": len(found.truncated), "left out": len(found.left_out)} for name, found in read.items()},
        unseen=unseen_in(tokenizer, {name: source + target for name, (source, target) in sides.items()}),
        answer_share=answers / int(read["train"].lengths.sum()),
        padding_waste=loader.padding_waste,
    )
