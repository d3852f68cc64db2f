"""What is known of instructions before step 1: sizes, lengths, what is cut or left out, doubles, overlap, symbols never seen."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from transom.inputs.instructions import InstructionLoader, Instructions
from transom.inputs.loader import encode
from transom.inputs.pairs import Pairs, Splits
from transom.inputs.report import SHOWN, counted, distribution, unseen
from transom.inputs.tokenizer import Tokenizer


@dataclass(frozen=True)
class InstructionReport:
    """The facts of the instructions.

    Attributes:
        problems: sentences that name what a person should look at.
        instructions: for each split its size, origin, doubles, and instructions that also stand in training.
        tokens: for each split and side the distribution of lengths in tokens, without special symbols.
        too_long: for training and validation, how many prompts lost their beginning and how many instructions are left out.
        unseen: for each split but training's, the symbols that training never shows.
        answer_share: of the tokens that training reads, those that are learnt from.
        padding_waste: share of the first epoch's tokens that is padding.
    """

    problems: list[str]
    instructions: dict[str, dict[str, str | int]]
    tokens: dict[str, dict[str, int | float]]
    too_long: dict[str, dict[str, int]]
    unseen: dict[str, dict[str, str | int]]
    answer_share: float
    padding_waste: float

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Give the report for people, the problems last."""
        lines = []
        for name, facts in self.instructions.items():
            lines.append(f"{name}: {counted(int(facts['instructions']), 'instruction')} ({facts['from']})")
            for side in ("prompt", "answer"):
                figures = self.tokens[f"{name} {side}"]
                lines.append(
                    f"  {side} tokens: median {figures['median']:g}, 99 % up to {figures['99 %']:g}, longest {figures['longest']},"
                    f" {figures['total']:,} in all"
                )
        lines.append(f"learnt from: {self.answer_share:.1%} of the tokens, the answers and their ends; prompts are read only")
        lines.append(f"padding: {self.padding_waste:.1%} of the tokens in the first epoch's batches")
        return [*lines, *(f"look at this: {problem}" for problem in self.problems)]


def report_instructions(
    splits: Splits, read: Mapping[str, Instructions], tokenizer: Tokenizer, loader: InstructionLoader
) -> InstructionReport:
    """Examine the instructions of a run.

    Args:
        splits: all instructions, the answer as target.
        read: those of training and validation as the model reads them, by the split's name.
        tokenizer: of both sides.
        loader: of the training instructions.
    """
    parts = {name: part for name, part in (("train", splits.train), ("valid", splits.valid), ("test", splits.test)) if part is not None}
    sides = {name: (encode(tokenizer, part.source), encode(tokenizer, part.target)) for name, part in parts.items()}
    seen = {token for side in sides["train"] for row in side for token in row}
    known, problems = set(zip(splits.train.source, splits.train.target, strict=True)), _contradictions(splits.train)
    sizes, never = dict[str, dict[str, str | int]](), dict[str, dict[str, str | int]]()
    for name, part in parts.items():
        both = list(zip(part.source, part.target, strict=True))
        sizes[name] = {"instructions": len(part), "from": part.name, "doubles": len(part) - len(set(both))}
        if name == "train":
            continue
        if also := sum(each in known for each in both):
            problems.append(f"{name}: {also:,} of {counted(len(part), 'instruction')} also in training, so its figures flatter")
        never[name] = unseen(tokenizer, [row for side in sides[name] for row in side], seen)
    for name, found in read.items():
        problems += [
            f"{name}: {counted(len(samples), 'instruction')} longer than the {loader.max_seq_len} tokens that the model reads; {fate}"
            f" ({', '.join(f'line {parts[name].line(i)}' for i in samples[:SHOWN])}{', ...' * (len(samples) > SHOWN)})"
            for samples, fate in ((found.truncated, "the end of the prompt stands for it"), (found.left_out, "left out"))
            if samples
        ]
    answers = sum(map(len, read["train"].answers)) + len(read["train"].answers)
    return InstructionReport(
        problems=problems,
        instructions=sizes,
        tokens={
            f"{name} {side}": distribution(np.array([len(row) for row in rows], np.int64))
            for name, both in sides.items()
            for side, rows in zip(("prompt", "answer"), both, strict=True)
        },
        too_long={name: {"truncated": len(found.truncated), "left out": len(found.left_out)} for name, found in read.items()},
        unseen=never,
        answer_share=answers / int(read["train"].lengths.sum()),
        padding_waste=loader.padding_waste,
    )


def _contradictions(train: Pairs) -> list[str]:
    """Name prompts that stand in training with two answers."""
    first: dict[str, int] = {}
    again = [i for i, prompt in enumerate(train.source) if train.target[first.setdefault(prompt, i)] != train.target[i]]
    if not again:
        return []
    places = ", ".join(f"{train.line(first[train.source[i]])} and {train.line(i)}" for i in again[:SHOWN])
    return [f"train: {counted(len(again), 'prompt')} with another answer than before, lines {places}{', ...' * (len(again) > SHOWN)}"]
