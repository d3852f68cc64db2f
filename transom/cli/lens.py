"""``transom lens``: read a model's residual stream, divide its answer among its parts and inputs, and read its neurons."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from transom.checkpoints.output_paths import check_output_path, data_paths
from transom.cli import lens_attention
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import InputFileOption, PrecisionOption, RunArgument, TextArgument, require_one_input
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.cli.terminal_width import cut_line, split_columns
from transom.cli.trace import indices_option
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.edits.answers import Question
    from transom.inspection.lenses.logit_lens import LogitLens

EXAMPLES = """
transom lens logit runs/gpt "To be, or not to"
transom lens logit runs/en-de "A man sleeps." --top 3 --json
transom lens tune runs/gpt
transom lens logit runs/gpt "To be, or not to" --tuned
transom lens attribution runs/gpt "To be, or not to" --answer " be" --against " see"
transom lens inputs runs/sst2 "A fine film." --answer positive
transom lens neurons runs/gpt --block 1 --neuron 3,17
transom lens rollout runs/en-de "A man sleeps."
transom lens flow runs/gpt "To be, or not" --position 3
"""

app = typer.Typer(add_completion=False, help="RUN is a run folder; models need a residual stream, which recurrent models do not have.")

AnswerOption = Annotated[
    str | None,
    typer.Option("--answer", metavar="TEXT", help="Continuation, translation, token of a mask, tag or class. Default: the model's own."),
]

MAX_ROWS = 20
"""Parts and patches that are printed, those with the largest contributions."""


@app.command()
def logit(
    run: RunArgument,
    text: TextArgument = None,
    input_file: InputFileOption = None,
    answer: AnswerOption = None,
    positions: Annotated[
        str | None,
        typer.Option("--positions", metavar="N,N", help="Positions of the logits to read, from 0. Default: those of the answer."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="Number of most probable tokens or classes per block.")] = 5,
    tuned: Annotated[bool, typer.Option("--tuned", help="Read through the tuned lens that transom lens tune RUN wrote.")] = False,
    tuned_file: Annotated[
        Path | None, typer.Option("--tuned-file", metavar="FILE", help="Read through the tuned lens in this file.")
    ] = None,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Print what the model would answer if it ended after each block: the logit lens (nostalgebraist 2020).

    The residual stream after each block passes through the final norm and the output layer. p and rank are those of the answer, and KL is
    the distance of the block's distribution from the model's own in nats. With --tuned, an affine map that transom lens tune trained
    precedes the final norm (Belrose et al. 2023): early blocks write in other coordinates, which the logit lens alone reads badly.

    Examples: transom lens logit runs/gpt "To be, or not to"; transom lens logit runs/mine "A man sleeps." --positions 0,1 --tuned.
    """
    require_one_input(text, input_file)
    chosen = indices_option("positions", positions)
    with gc_frozen_imports():
        import torch

        from transom.inspection.lenses.logit_lens import logit_lens
        from transom.inspection.lenses.question import lens_question
        from transom.inspection.lenses.readout import output_symbols
        from transom.inspection.lenses.tuned_lens import FILE, load_tuned_lens
        from transom.tasks.load import load

    loaded = load(run, precision)
    options: dict[str, Any] = {}
    if tuned or tuned_file is not None:
        options["translate"] = load_tuned_lens(loaded, tuned_file or run / FILE).translate
    question = lens_question(loaded, text, input_file, answer)
    _print_notes(question)
    if chosen is None:
        chosen, options["answers"] = list(question.positions), torch.tensor([question.symbols])
    found, name = logit_lens(loaded, question.batch, positions=chosen, top=top, **options), output_symbols(loaded)
    print_result(_lens_record(found, name), as_json, _lens_lines(found, name))


@app.command()
def tune(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write. Default: tuned-lens.safetensors in the run folder.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, max=100_000, help="Optimizer steps.")] = 300,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Train a tuned lens on the run's training data: one affine map per block, so that each block predicts the final distribution.

    The table has the mean distance from the model's own distribution in nats on held-out data, of the logit lens and of the tuned lens,
    which is never larger. The model itself is not changed. transom lens logit RUN TEXT --tuned reads through the lens.

    Examples: transom lens tune runs/gpt; transom lens tune runs/gpt --steps 1000 --out lens.safetensors.
    """
    check_output_path(out, [run])
    with gc_frozen_imports():
        from transom.checkpoints.run_files import RECIPE
        from transom.config.recipe import load_recipe
        from transom.inspection.lenses.tuned_lens import FILE, train_tuned_lens
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress
        from transom.tasks.run_data import load_run_data

    loaded, data, path = load(run, precision), load_run_data(run), out or run / FILE
    check_output_path(path, data_paths(*load_recipe(run / RECIPE)))
    with show_progress("steps", quiet=as_json) as notify:
        found = train_tuned_lens(loaded, data.train, data.valid, n_steps=steps, notify=notify)
    found.lens.save(path)
    print_note(f"wrote {path}")
    pairs = list(zip(found.streams, found.logit_kl, found.tuned_kl, strict=True))
    record = {"file": str(path), "steps": steps, "streams": [{"stream": s, "logit_kl": a, "tuned_kl": b} for s, a, b in pairs]}
    head = ["stream", "KL of logit lens", "KL of tuned lens"]
    print_result(record, as_json, align_columns([head, *([s, f"{a:.4f}", f"{b:.4f}"] for s, a, b in pairs)]))


@app.command()
def attribution(
    run: RunArgument,
    text: TextArgument = None,
    input_file: InputFileOption = None,
    answer: AnswerOption = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="TEXT", help="Explain the logit of the answer minus that of this token or class.")
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", min=0, help="Position of the logits, from 0. Default: that of the answer's first token.")
    ] = None,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Divide one logit among the parts of the model that wrote to the residual stream (direct logit attribution; Elhage et al. 2021).

    Each head, feed-forward network, expert, embedding and bias adds a vector to the stream. With the statistics of the norms held fixed
    the logit is a sum over these vectors. The sum of all contributions is printed beside the logit. A difference of two logits (--against)
    shows what decides between two answers, without what raises all logits.

    Examples: transom lens attribution runs/gpt "To be, or not to"; transom lens attribution runs/sst2 "A fine film." --against negative.
    """
    require_one_input(text, input_file)
    with gc_frozen_imports():
        from transom.inspection.lenses.logit_attribution import logit_attribution
        from transom.inspection.lenses.question import lens_question, symbol_index
        from transom.inspection.lenses.readout import output_symbols
        from transom.tasks.load import load

    loaded = load(run, precision)
    question, name = lens_question(loaded, text, input_file, answer), output_symbols(loaded)
    _print_notes(question)
    place = question.positions[0] if position is None else position
    symbol = question.symbols[list(question.positions).index(place)] if place in question.positions else None
    other = None if against is None else symbol_index(loaded, against)
    found = logit_attribution(loaded, question.batch, symbol, against=other, position=place)
    parts = [{"part": each.part, "head": each.head, "value": each.value} for each in found.contributions]
    symbols = {"symbol": name(found.symbol), "against": None if other is None else name(other)}
    record = {"position": found.position, **symbols, "logit": found.logit, "sum": found.total, "contributions": parts}
    largest = sorted(found.contributions, key=lambda each: -abs(each.value))[:MAX_ROWS]
    what = f"logit of {name(found.symbol)!r}" + ("" if other is None else f" minus that of {name(other)!r}")
    rows = [[each.part + ("" if each.head is None else f", head {each.head}"), f"{each.value:+.4f}"] for each in largest]
    more = f"{len(parts):,} parts; the {MAX_ROWS} largest are shown, --json has all" if len(parts) > MAX_ROWS else f"{len(parts)} parts"
    total = f"sum {found.total:.6g}, logit {found.logit:.6g}, difference {found.total - found.logit:.1e}"
    lines = [f"{what} at position {found.position}", "", *align_columns([["part", "contribution"], *rows]), "", more, total]
    print_result(record, as_json, lines)


@app.command()
def inputs(
    run: RunArgument,
    text: TextArgument = None,
    input_file: InputFileOption = None,
    answer: AnswerOption = None,
    method: Annotated[
        Literal["integrated-gradients", "gradient-x-input"],
        typer.Option("--method", help="Integrated gradients, which add up to the answer, or one gradient times the input."),
    ] = "integrated-gradients",
    of: Annotated[
        Literal["log-prob", "logit"],
        typer.Option("--of", help="Explain the log-probability of the answer in nats, or the sum of its logits."),
    ] = "log-prob",
    baseline: Annotated[
        Literal["mean", "padding", "zero"],
        typer.Option("--baseline", help="Embedding without information: the mean of all tokens or patches, that of padding, or 0."),
    ] = "mean",
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Print how much each token or patch of the input contributes to the answer.

    Integrated gradients (Sundararajan et al. 2017) add up the gradients on the way from a baseline, an input without information, to the
    input. Their sum is the answer minus the answer to the baseline; the number of steps is doubled until this holds, and what is left is
    printed. A positive contribution makes the answer more probable. For a translator both the source and the translation so far contribute.

    Examples: transom lens inputs runs/sst2 "A fine film."; transom lens inputs runs/photos --input cat.jpg --of logit.
    """
    require_one_input(text, input_file)
    with gc_frozen_imports():
        from transom.inspection.lenses.input_attribution import input_attribution
        from transom.inspection.lenses.question import lens_question, logit_target
        from transom.inspection.trace import token_symbols
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    loaded = load(run, precision)
    question = lens_question(loaded, text, input_file, answer)
    _print_notes(question)
    target = question.target if of == "log-prob" else logit_target(question)
    with show_progress("steps", quiet=as_json) as notify:
        found = input_attribution(loaded, question.batch, target=target, method=method, baseline=baseline, notify=notify)
    tokens = token_symbols(loaded, question.batch)
    record = {
        "answer": question.answer,
        "of": of,
        "method": method,
        "value": found.answer,
        "baseline": found.baseline,
        "steps": found.steps,
        "error": found.error,
        "tolerance": found.tolerance,
        "complete": found.complete,
        "tokens": tokens,
        "contributions": {side: x.tolist() for side, x in found.values.items()},
    }
    lines = [f"answer {question.answer!r}: {of} {found.answer:.4f}, of the baseline {found.baseline:.4f}"]
    for side, x in found.values.items():
        lines += ["", *_input_lines(side, x.tolist(), tokens)]
    total = sum(x.sum().item() for x in found.values.values())
    holds = "complete" if found.complete else "not complete"
    check = f"{holds}: error {found.error:.1e}, tolerance {found.tolerance:.1e}, {found.steps} steps"
    plain = "gradient x input need not add up"
    lines += ["", f"sum {total:.4f}, change {found.answer - found.baseline:.4f}; {plain if method == 'gradient-x-input' else check}"]
    print_result(record, as_json, lines)


@app.command()
def neurons(
    run: RunArgument,
    text: TextArgument = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="File of texts, one per line, or an image or sound for such a model.")
    ] = None,
    block: Annotated[int, typer.Option("--block", min=0, help="Block of the feed-forward network, from 0.")] = 0,
    stack: Annotated[Literal["encoder", "decoder"] | None, typer.Option("--stack", help="Stack. Default: that of the answer.")] = None,
    expert: Annotated[int | None, typer.Option("--expert", min=0, help="Expert, from 0, in a mixture of experts.")] = None,
    neuron: Annotated[
        str | None, typer.Option("--neuron", metavar="N,N", help="Neurons, from 0. Default: the 5 that fire most on these texts.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, max=1000, help="Number of tokens per neuron.")] = 5,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Print which texts fire a neuron of a feed-forward network most, and which tokens it promotes (Geva et al. 2021).

    A row of W_1 is compared with each token, and fires where they agree: the token is marked with brackets. The neuron then adds a column
    of W_2 to the residual stream, which raises the logits of some tokens and lowers others. The texts are TEXT, the lines of --input, or by
    default the run's validation data.

    Examples: transom lens neurons runs/gpt --block 1; transom lens neurons runs/gpt --input poems.txt --block 0 --neuron 12.
    """
    if text is not None and input_file is not None:
        raise ConfigError("expected TEXT or --input, found both; give one of them, or neither for the validation data")
    wanted = indices_option("neuron", neuron)
    with gc_frozen_imports():
        from transom.inspection.lenses.neurons import find_network_of_neurons, neuron_firings
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress
        from transom.tasks.run_data import load_inputs

    loaded = load(run, precision)
    path, _ = find_network_of_neurons(loaded, block, stack, expert)
    batches = load_inputs(loaded, run, text, input_file)
    with show_progress("batches", quiet=as_json) as notify:
        found = neuron_firings(loaded, batches, path, wanted, top=top, n_batches=len(batches), notify=notify)
    if wanted is None:
        found = dict(sorted(found.items(), key=lambda each: -max((firing.value for firing in each[1]), default=0.0))[:5])
    record = _neurons_record(loaded, path, found, batches, top)
    print_result(record, as_json, _neuron_lines(record))


def _print_notes(question: "Question") -> None:
    """Print the notes on an input."""
    for note in question.notes:
        print_note(note)


def _lens_record(found: "LogitLens", name: Any) -> dict[str, Any]:
    """Return the result of a logit lens as JSON-serializable data, for the first row of the batch."""

    def at(number: int, i: int) -> dict[str, Any]:
        best = zip(found.top_symbols[number, 0, i].tolist(), found.top_probs[number, 0, i].tolist(), strict=True)
        return {
            "position": found.positions[i],
            "answer": name(int(found.answers[0, i])),
            "p": found.answer_probs[number, 0, i].item(),
            "rank": int(found.answer_ranks[number, 0, i]),
            "kl": found.kl[number, 0, i].item(),
            "top": [{"token": name(symbol), "p": p} for symbol, p in best],
        }

    return {"streams": [{"stream": s, "positions": [at(n, i) for i in range(len(found.positions))]} for n, s in enumerate(found.streams)]}


def _lens_lines(found: "LogitLens", name: Any) -> Iterator[str]:
    """Format one position with its most probable tokens, or several positions as a grid of the most probable token."""
    streams = _lens_record(found, name)["streams"]
    if len(found.positions) == 1:
        (one,) = streams[-1]["positions"]
        yield from (f"answer {one['answer']!r} at position {one['position']}", "")
        rows = [["stream", "p", "rank", "KL", "most probable"]]
        for stream in streams:
            (one,) = stream["positions"]
            best = "  ".join(f"{each['token']} {each['p']:.1%}" for each in one["top"])
            rows.append([stream["stream"], f"{one['p']:.2%}", str(one["rank"]), f"{one['kl']:.3f}", best])
        table = align_columns([row[:-1] for row in rows])
        yield from (cut_line(f"{line}  {row[-1]}").rstrip() for line, row in zip(table, rows, strict=True))
        return
    yield "most probable token, and its probability, by position"
    cells = [
        ["stream", *(f"{each['position']}: {each['answer']}" for each in streams[-1]["positions"])],
        *([s["stream"], *(f"{each['top'][0]['token']} {each['top'][0]['p']:.0%}" for each in s["positions"])] for s in streams),
    ]
    yield from ("", *split_columns(cells))


def _input_lines(side: str, values: Sequence[float], tokens: Mapping[str, list[str]]) -> list[str]:
    """Format the contributions of one side: all tokens in order, or the patches with the largest ones."""
    symbols = tokens.get(side, [])
    if len(symbols) == len(values):
        rows = [[str(i), symbol, f"{x:+.4f}"] for i, (symbol, x) in enumerate(zip(symbols, values, strict=True))]
        return align_columns([["position", f"{side} token", "contribution"], *rows], n_left=2)
    largest = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:MAX_ROWS]
    lines = align_columns([["patch", "contribution"], *([str(i), f"{values[i]:+.4f}"] for i in largest)])
    return [*lines, *([f"{len(values)} patches; the {MAX_ROWS} largest are shown, --json has all"] if len(values) > MAX_ROWS else [])]


def _neurons_record(run: Any, path: str, found: Mapping[int, Sequence[Any]], batches: Sequence[Any], top: int) -> dict[str, Any]:
    """Return the texts that fire each neuron, and the tokens that it promotes where the output layer is linear."""
    from transom.inspection.lenses.neurons import describe_firing, neuron_tokens, promotes_tokens
    from transom.inspection.lenses.readout import output_symbols

    listed = [
        {"neuron": n, "firings": [{"value": each.value, **describe_firing(run, path, batches, each)} for each in firings]}
        for n, firings in found.items()
    ]
    if promotes_tokens(run, path):
        tokens, name = neuron_tokens(run, path, list(found), top=top), output_symbols(run)
        for i, each in enumerate(listed):
            for kind in ("promoted", "suppressed"):
                pairs = zip(getattr(tokens, kind)[i].tolist(), getattr(tokens, f"{kind}_logits")[i].tolist(), strict=True)
                each[kind] = [{"token": name(symbol), "logit": value} for symbol, value in pairs]
    return {"network": path, "neurons": listed}


def _neuron_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Format the neurons of a network, each with its texts and tokens."""
    for number, each in enumerate(record["neurons"]):
        yield from [""] if number else []
        yield f"{record['network']}, neuron {each['neuron']}"
        rows = [[f"  {firing['value']:.3f}", firing["text"]] for firing in each["firings"]]
        yield from (cut_line(line) for line in (align_columns([["  fires", "at"], *rows], n_left=2) if rows else ["  fires at no token"]))
        for kind in ("promoted", "suppressed"):
            if kind in each:
                shown = "  ".join(f"{token['token']} {token['logit']:+.2f}" for token in each[kind])
                yield cut_line(f"  {kind}: {shown}")


app.command("rollout", epilog=lens_attention.ROLLOUT_EXAMPLES)(lens_attention.rollout)
app.command("flow", epilog=lens_attention.FLOW_EXAMPLES)(lens_attention.flow)
