"""Data report for instructions: sizes, lengths, truncation, duplicates, overlap of splits and unseen symbols."""

from collections.abc import Mapping
from typing import Any

from transom.data.labeled.instructions import InstructionLoader, Instructions
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.reports import findings
from transom.data.reports.report import Report
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer

_SIDES = ("prompt", "answer")


def report_instructions(splits: Splits[Pairs], read: Mapping[str, Instructions], tokenizer: Tokenizer, loader: InstructionLoader) -> Report:
    """Examine the instructions of a run.

    Args:
        splits: all instructions, with the answer as target.
        read: the tokenized instructions of training and validation, by the split's name.
        tokenizer: tokenizer of prompts and answers.
        loader: loader of the training instructions.

    Returns:
        A report with the statistics: per split, size, origin and duplicates (``instructions``); per split and side, the distribution of
        lengths in tokens without special tokens (``tokens``); for training and validation, the numbers of truncated prompts and of dropped
        instructions (``too_long``); per split except training, the symbols absent from the training data (``unseen``); the fraction of
        training tokens that contribute to the loss (``answer_share``); the fraction of padding in the first epoch (``padding_waste``).
    """
    parts, train = splits.parts, splits.train
    both = {name: list(zip(part.source, part.target, strict=True)) for name, part in parts.items()}
    rows = {name: (encode(tokenizer, part.source), encode(tokenizer, part.target)) for name, part in parts.items()}
    too_long = [
        f"{name}: {findings.counted(len(samples), 'instruction')} longer than the {loader.max_seq_len} tokens of the context window;"
        f" {fate} ({findings.shown([f'line {parts[name].line(i)}' for i in samples])})"
        for name, found in read.items()
        for samples, fate in ((found.truncated, "only the end of the prompt is kept"), (found.left_out, "dropped"))
        if samples
    ]
    problems = [
        *findings.contradictions(train.source, train.target, train.line, "prompt", "answer than before, lines"),
        *findings.overlaps(both, "instruction"),
        *too_long,
    ]
    n_learnt = sum(map(len, read["train"].answers)) + len(read["train"].answers)
    facts: dict[str, Any] = {
        "instructions": findings.sizes(parts, both, "instruction"),
        "tokens": {
            f"{name} {side}": findings.distribution(of_side)
            for name, of_part in rows.items()
            for side, of_side in zip(_SIDES, of_part, strict=True)
        },
        "too_long": {name: {"truncated": len(found.truncated), "left out": len(found.left_out)} for name, found in read.items()},
        "unseen": findings.unseen_in(tokenizer, {name: source + target for name, (source, target) in rows.items()}),
        "answer_share": n_learnt / int(read["train"].lengths.sum()),
        "padding_waste": loader.padding_waste,
    }
    lines = [
        *findings.summary(facts["instructions"], "instruction", lambda name: findings.tokens_told(facts["tokens"], name, _SIDES)),
        f"loss: {facts['answer_share']:.1%} of the tokens contribute, those of the answers and their end-of-sequence tokens",
        f"padding: {facts['padding_waste']:.1%} of the tokens in the first epoch's batches",
    ]
    return Report(problems, facts, lines)
