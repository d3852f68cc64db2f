"""Data report on instructions, with sizes, lengths, truncation, contradictory answers, overlap of splits and unseen symbols."""

from collections.abc import Mapping
from typing import Any

from transom.data.labeled.instructions import InstructionLoader, Instructions
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.files.message import phrase

_SIDES = ("prompt", "answer")


def report_instructions(
    splits: Splits[Pairs], read: Mapping[str, Instructions], tokenizer: Tokenizer, loader: InstructionLoader
) -> DataReport:
    """Examine the instructions of a run and return a data report.

    Args:
        splits: instructions of all splits, as pairs of prompt and answer.
        read: tokenized instructions of the training and validation splits, by the name of the split.
        tokenizer: tokenizer of prompts and answers.
        loader: loader of the training instructions.

    Returns:
        A report with these statistics:

        - ``instructions``: size, origin and number of duplicates of each split.
        - ``tokens``: distribution of lengths, in tokens without special tokens, of the prompts and the answers of each split.
        - ``too_long``: numbers of truncated prompts and of dropped instructions in the training and validation splits.
        - ``unseen``: symbols of each split other than training that are absent from the training data.
        - ``answer_fraction``: fraction of the training tokens that contribute to the loss.
        - ``padding_waste``: fraction of padding among the tokens of the first epoch.
    """
    parts, train = splits.parts, splits.train
    both = {name: list(zip(part.source, part.target, strict=True)) for name, part in parts.items()}
    rows = {name: (encode(tokenizer, part.source), encode(tokenizer, part.target)) for name, part in parts.items()}
    kept = phrase("data.end_of_prompt", "only the end of the prompt is kept"), phrase("data.are_dropped", "dropped")
    too_long = [
        phrase(
            "data.long_instructions",
            "{name}: {samples} longer than the {most} tokens of the context window; {treatment} ({examples})",
            name=findings.split_name(name),
            samples=findings.count_noun(len(samples), "instruction"),
            most=str(loader.max_seq_len),
            treatment=treatment,
            examples=findings.first_examples([phrase("data.line", "line {line}", line=str(parts[name].line_number(i))) for i in samples]),
        )
        for name, found in read.items()
        for samples, treatment in zip((found.truncated, found.dropped), kept, strict=True)
        if samples
    ]
    problems = [
        *findings.contradiction_problems(
            train.source,
            train.target,
            train.line_number,
            "prompt",
            phrase("data.other_answer", "another answer than an earlier equal prompt: lines"),
        ),
        *findings.overlap_problems(both, "instruction"),
        *too_long,
    ]
    n_loss_tokens = sum(map(len, read["train"].answers)) + len(read["train"].answers)
    statistics: dict[str, Any] = {
        "instructions": findings.split_sizes(parts, both, "instruction"),
        "tokens": {
            f"{name} {side}": findings.length_distribution(of_side)
            for name, of_part in rows.items()
            for side, of_side in zip(_SIDES, of_part, strict=True)
        },
        "too_long": {name: {"truncated": len(found.truncated), "dropped": len(found.dropped)} for name, found in read.items()},
        "unseen": findings.unseen_by_split(tokenizer, {name: source + target for name, (source, target) in rows.items()}),
        "answer_fraction": n_loss_tokens / int(read["train"].lengths.sum()),
        "padding_waste": loader.padding_waste,
    }
    lines = [
        *findings.summarize_sizes(
            statistics["instructions"], "instruction", lambda name: findings.format_token_lengths(statistics["tokens"], name, _SIDES)
        ),
        f"loss: {statistics['answer_fraction']:.1%} of the tokens contribute, those of the answers and their end-of-sequence tokens",
        f"padding: {statistics['padding_waste']:.1%} of the tokens in the first epoch's batches",
    ]
    return DataReport(problems, statistics, lines, findings.reading_notes(parts))
