"""Show a search step by step: ``translate --trace steps`` and ``generate --trace steps``."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from transom.checkpoints.output_paths import check_output_path
from transom.cli.inputs import Answer
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.decoding.search.step_trace import Candidate, Extension, RecordedSearch, SearchStep

TraceOption = Annotated[
    Literal["steps"] | None,
    typer.Option(
        "--trace",
        metavar="steps",
        help="Also print each step of the search: the most probable tokens, those chosen, and the hypotheses kept and dropped.",
    ),
]
TraceFileOption = Annotated[
    Path | None, typer.Option("--trace-file", metavar="FILE", help="With --trace: JSON file for the steps of all inputs.")
]
Symbols = Callable[[Iterable[int]], Sequence[str]]
"""Returns the symbols of token ids."""


class StepTrace:
    """Answers inputs with the steps of their search, and collects the steps for a file."""

    def __init__(self, record_search: Callable[..., "RecordedSearch"], symbols: Symbols, options: dict[str, Any]) -> None:
        """Store the method of the predictor that records a search, the symbols of its tokens, and the options of the search."""
        self._record_search, self._symbols, self._options = record_search, symbols, options
        self.records = list[dict[str, Any]]()

    def answer(self, texts: Iterable[str], notify: Any) -> list[Answer]:
        """Answer each text: its steps, an empty line, and the text that was found."""
        answers = []
        for text in texts:
            found, steps, *_ = self._record_search(text, **self._options)
            record = {"input": text, "text": found.text, "steps": steps_as_json(steps, self._symbols)}
            self.records.append(record)
            answers.append(Answer(record, [*step_lines(steps, self._symbols), "", found.text]))
        return answers

    def save(self, file: Path | None) -> None:
        """Write the steps of all inputs to a JSON file."""
        if file is not None:
            from transom.files.atomic_io import json_bytes, write_file

            write_file(file, json_bytes(self.records))


def check_trace_options(trace: str | None, file: Path | None, n: int, option: str, inputs: Iterable[Path | None]) -> None:
    """Raise if a file is given without --trace, or several texts per input are asked for with it.

    Raises:
        ConfigError: the options contradict each other, or the file would replace an input.
    """
    if trace is None and file is not None:
        raise ConfigError("--trace-file: expected --trace steps, found none; add it, or leave out --trace-file")
    if trace is not None and n > 1:
        raise ConfigError(f"--trace: expected one text per input, found {option} {n}; leave out one of them")
    check_output_path(file, inputs)


def step_lines(steps: Iterable["SearchStep"], symbols: Symbols) -> Iterator[str]:
    """Format the steps of a search, a line per hypothesis."""
    for step in steps:
        yield f"step {step.number}"
        for index, hypothesis in enumerate(step.hypotheses):
            taken = {each.chosen.token for each in (*step.kept, *step.finished) if each.parent == index}
            words = [_format(each, symbols, each.token in taken) for each in hypothesis.candidates]
            listed = {each.token for each in hypothesis.candidates}
            words += [
                _format(each.chosen, symbols, True) + f" (rank {each.chosen.rank + 1:,})"
                for each in (*step.kept, *step.finished)
                if each.parent == index and each.chosen.token not in listed
            ]
            text = "".join(symbols(hypothesis.tokens)).replace("▁", " ").strip() or "(start)"
            fate = "  dropped" if index in step.dropped else ""
            yield f"  {text}  [log p {hypothesis.log_p:.3f}]{fate}"
            yield f"    {'  '.join(words)}"
        for each in step.finished:
            yield f"  finished: {_text(step, each, symbols)}  [log p {each.log_p:.3f}]"


def _format(candidate: "Candidate", symbols: Symbols, taken: bool) -> str:
    """Format a candidate with its probability; a chosen one is in brackets."""
    text = f"{symbols([candidate.token])[0]} {100 * candidate.p:.1f}%"
    return f"[{text}]" if taken else text


def _text(step: "SearchStep", extension: "Extension", symbols: Symbols) -> str:
    """Return the text of a hypothesis that ended."""
    return "".join(symbols(step.hypotheses[extension.parent].tokens)).replace("▁", " ").strip()


def steps_as_json(steps: Iterable["SearchStep"], symbols: Symbols) -> list[dict[str, Any]]:
    """Return the steps as JSON-serializable data, with the symbol of each token."""

    def candidate(each: "Candidate") -> dict[str, Any]:
        return {"token": each.token, "symbol": symbols([each.token])[0], "p": each.p, "rank": each.rank}

    def extension(each: "Extension") -> dict[str, Any]:
        return {"parent": each.parent, **candidate(each.chosen), "log_p": each.log_p}

    return [
        {
            "step": step.number,
            "hypotheses": [
                {
                    "tokens": list(each.tokens),
                    "symbols": list(symbols(each.tokens)),
                    "log_p": each.log_p,
                    "candidates": [candidate(one) for one in each.candidates],
                }
                for each in step.hypotheses
            ],
            "kept": [extension(each) for each in step.kept],
            "finished": [extension(each) for each in step.finished],
            "dropped": list(step.dropped),
        }
        for step in steps
    ]
