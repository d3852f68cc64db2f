"""``transom trace``: read named quantities of a model on one input, and save them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.checkpoints.output_paths import check_output_file
from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import (
    InputFileOption,
    PrecisionOption,
    RunArgument,
    SampleOption,
    TextArgument,
    option_errors,
    read_sample,
    require_one_input_or_sample,
)
from transom.cli.output import JsonOption, print_note, print_result
from transom.cli.terminal_width import fit_columns, fit_text, split_columns
from transom.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from transom.inspection.trace import Trace

EXAMPLES = """
transom trace runs/en-de "A man sleeps." --names cross.weights --blocks 0 --heads 1
transom trace runs/en-de "A man sleeps." --names "decoder.blocks.*.resid_post" --out stream.safetensors
transom trace runs/gpt "To be, or not" --names attn.weights,probs --positions 3 --temperature 0.7
transom trace runs/gpt "To be, or not" --names embedding.resid.grad,attn.weights.grad
transom trace runs/gpt "To be, or not" --names logits --edit without-head-2.json
transom trace runs/photos --input cat.jpg --names encoder.blocks.0.attn.weights --json
transom trace runs/photos --sample 12 --names probs
"""

app = typer.Typer(add_completion=False)


@app.command()
def trace(
    run: RunArgument,
    text: TextArgument = None,
    input_file: InputFileOption = None,
    sample: SampleOption = None,
    names: Annotated[
        str | None,
        typer.Option(
            "--names",
            metavar="NAME,NAME",
            help="Quantities to read; transom names RUN lists them. With .grad appended: gradients of the mean negative"
            " log-probability of the next tokens, or of the most likely class. Default: residual streams and attention weights.",
        ),
    ] = None,
    blocks: Annotated[str | None, typer.Option("--blocks", metavar="N,N", help="Blocks to read, from 0. Default: all.")] = None,
    heads: Annotated[str | None, typer.Option("--heads", metavar="N,N", help="Attention heads to read, from 0. Default: all.")] = None,
    positions: Annotated[
        str | None, typer.Option("--positions", metavar="N,N", help="Positions of the tokens to read, from 0. Default: all.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TEXT", help="Target text of a translator. Default: its own translation.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=1e-6, max=1e6, help="Divisor of the logits before probs.")] = 1.0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Save the tensors as a .safetensors file, by address.")] = None,
    edit: EditOption = None,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Run a model on one input, and read named quantities of the pass: residual streams, queries, scores, attention weights, probabilities.

    The model runs with its usual kernels, which do not store attention weights. These are recomputed from queries and keys, and certified:
    multiplied by the values they must give the output of each head, within rounding. A name may be an ending: attn.weights means those of
    all blocks. Positions apply to source and target. With --edit, layers whose head outputs are edited are not certified.
    """
    require_one_input_or_sample(text, input_file, sample, target)
    check_output_file(out, [run, input_file])
    if out is not None and out.suffix != ".safetensors":
        raise ConfigError(f"--out: expected a file that ends in .safetensors, found {out}; rename it, or print JSON with --json")
    numbers = {name: indices_option(name, given) for name, given in (("blocks", blocks), ("heads", heads), ("positions", positions))}
    with gc_frozen_imports():
        from transom.checkpoints.tensors import serialize_tensors
        from transom.files.atomic_io import write_file
        from transom.inspection.trace import trace_run
        from transom.tasks.load import load

    predictor, batch = load(run, precision), read_sample(run, sample)
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    with edits_in_force(predictor, edit) as edits, option_errors(text="TEXT", target="--target", **{name: f"--{name}" for name in numbers}):
        found, notes = trace_run(predictor, text, input_file, wanted, target, batch, temperature=temperature, **numbers)
    for note in notes:
        print_note(note)
    if found.idle:
        print_note(
            f"without a value, such as those of experts to which no token was sent: {len(found.idle):,}, for example {found.idle[0]}"
        )
    if found.edited:
        print_note(f"not certified, since their head outputs are edited: {', '.join(sorted(found.edited))}")
    certificates = found.certify()
    for certificate in certificates:
        certificate.check()
    tensors = dict(found)
    if out is not None:
        write_file(out, serialize_tensors({address: tensor.contiguous() for address, tensor in tensors.items()}))
        print_note(f"wrote {len(tensors):,} tensors to {out}")
    record = {**_record(found, tensors, certificates), **({"edits": edits} if edits else {})} if as_json else None
    print_result(record, as_json, _lines(found, tensors, certificates))


def _record(found: "Trace", tensors: Mapping[str, "Tensor"], certificates: Sequence[Any]) -> dict[str, Any]:
    """Return tokens, values and certificates as JSON-serializable data."""
    return {
        "tokens": found.tokens,
        "quantities": {
            address: {
                "shape": list(x.shape),
                "axes": found.axes(address, x.ndim),
                "transformer_lens": found.quantities[address].alias or None,
                "values": x.tolist(),
            }
            for address, x in tensors.items()
        },
        "certificates": [certificate._asdict() for certificate in certificates],
    }


def indices_option(name: str, given: str | None) -> list[int] | None:
    """Parse a list of indices such as ``0,3``.

    Raises:
        ConfigError: an index is no whole number from 0, or is there twice.
    """
    if given is None:
        return None
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise ConfigError(f"--{name}: expected whole numbers from 0, separated by commas, found {given!r}; such as --{name} 0,3")
    numbers = [int(part) for part in parts]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise ConfigError(f"--{name}: expected each number once, found {twice[0]} {numbers.count(twice[0])} times; leave it out")
    return numbers


MAX_SHOWN = 400
"""Tensors of at most this many values are printed in full."""


def _lines(found: "Trace", tensors: Mapping[str, "Tensor"], certificates: Sequence[Any]) -> Iterable[str]:
    """Format tokens, a summary of each tensor, small tensors in full, and the certificates."""
    for side, tokens in found.tokens.items():
        yield fit_text(f"{side}: {' '.join(tokens)}")
    rows: list[tuple[str, ...]] = [("name", "shape", "mean", "std", "min", "max")]
    for address, x in tensors.items():
        finite = x.double()[x.isfinite()]
        statistics = (finite.mean(), finite.std(correction=0), finite.min(), finite.max()) if finite.numel() else ()
        shape = ", ".join(f"{axis}={size}" for axis, size in zip(found.axes(address, x.ndim), x.shape, strict=True))
        rows.append((address, f"({shape})", *(f"{each:.4g}" for each in statistics), *("-",) * (4 - len(statistics))))
    yield from ["", *fit_columns(rows, n_left=2)]
    for address, x in tensors.items():
        if x.ndim >= 2 and x.numel() <= MAX_SHOWN:
            yield from ["", address, *_matrices(x, found.axes(address, x.ndim), _labels(found, address))]
    if certificates:
        worst = max(certificates, key=lambda each: each.ratio)
        n_maps = sum(each.n_maps for each in certificates)
        yield ""
        maps = f"{n_maps:,} attention map{'' if n_maps == 1 else 's'}"
        yield fit_text(f"{maps} certified: the largest error is {worst.ratio:.2g} of its bound of rounding ({worst.address})")


def _labels(found: "Trace", address: str) -> dict[str, list[str]]:
    """Return the tokens of the query and key positions of a quantity, where a run has a tokenizer."""
    own = found.tokens.get("target" if address.startswith(("decoder", "target")) else "source", [])
    keys = found.tokens.get("source", []) if ".cross." in address else own
    queries = own if found.positions is None else [own[i] for i in found.positions if i < len(own)]
    return {"query": queries, "key": keys}


def _matrices(x: "Tensor", axes: Sequence[str], labels: Mapping[str, list[str]]) -> Iterator[str]:
    """Format the last two axes of a tensor as tables, one for each index of the others."""

    def named(axis: int) -> list[str]:
        tokens = labels.get(axes[axis], [])
        return tokens if len(tokens) == x.shape[axis] else [str(i) for i in range(x.shape[axis])]

    for index in product(*(range(size) for size in x.shape[:-2])):
        if index:
            yield f"  {', '.join(f'{axis} {i}' for axis, i in zip(axes, index, strict=False))}"
        head = [f"{axes[-2]} / {axes[-1]}", *named(-1)]
        table = [[label, *(f"{value:.4g}" for value in row)] for label, row in zip(named(-2), x[index].tolist(), strict=True)]
        yield from split_columns([head, *table], indent=4)
