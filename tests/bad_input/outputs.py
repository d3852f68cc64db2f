"""Outputs that would destroy a run, an input or something foreign, and places where nothing can be written."""

import os
import socket
from collections.abc import Callable

from tests.bad_input.case import Case, Draw, Kinds, Place

KINDS = Kinds()

SET = ("--set", "training.max_steps=1", "--set", "tokenizer.kind=char")
RUN = "translation"
WRITERS: dict[str, Callable[[str], list[str]]] = {
    "translate": lambda out: ["translate", "run", "--input", "in.txt", "--output", out],
    "evaluate": lambda out: ["evaluate", "run", "--source", "in.txt", "--target", "target.txt", "--output", out],
    "embed": lambda out: ["embed", "run", "--input", "in.txt", "--output", out],
    "compare attention": lambda out: ["compare-attention", "run", "--input", "in.txt", "--repeats", "1", "--out", out],
    "train a tokenizer": lambda out: [
        "tokenizer",
        "train",
        "text-bpe",
        "--text",
        "in.txt",
        "--set",
        "tokenizer.vocab_size=300",
        "--out",
        out,
    ],
    "draw patterns": lambda out: ["recipes", "patterns", "recipe.toml", "--out", out],
}
"""What writes a file where it is told to."""

RUNS = {"embed": "embedding", "compare attention": "language"}
OF_RUNS = ("translate", "evaluate", "embed", "compare attention")


def prepared(writer: str) -> Callable[[Place], None]:
    """Write what the command lines read."""

    def prepare(place: Place) -> None:
        place.copy(RUNS.get(writer, RUN))
        place.write("in.txt", place.data("text.txt" if writer == "train a tokenizer" else "few.source").read_bytes())
        place.write("target.txt", place.data("few.target").read_bytes())
        place.write("recipe.toml", 'task = "translation"\n[data]\ngenerate = "copy"\n')

    return prepare


def written(draw: Draw, out: str, about: str, writers: tuple[str, ...] = (), more: Callable[[Place], object] | None = None) -> Case:
    """Have an output written to a bad place."""
    writer = draw.choice(writers or tuple(WRITERS))

    def prepare(place: Place) -> None:
        prepared(writer)(place)
        if more is not None:
            more(place)

    return Case(f"{writer}: {about}", WRITERS[writer](out), prepare)


OWN = ("model.safetensors", "config.json", "tokenizer.json", "recipe.toml", "metrics.jsonl", "report.html", "README.md", ".transom.lock")
WITHIN = ("checkpoints/step-4/model.safetensors", "checkpoints/step-2/state.json", "checkpoints/step-4/manifest.json")


@KINDS.add
def a_file_of_the_run(draw: Draw) -> Case:
    name = draw.choice([*OWN, *WITHIN])
    return written(draw, f"run/{name}", f"onto the run's {name}", OF_RUNS)


@KINDS.add
def a_file_of_the_run_by_another_way(draw: Draw) -> Case:
    name = draw.choice([*OWN[:-1], *WITHIN])
    way = draw.choice(["./run/../run/", "alias/", "run//", "run/./checkpoints/../", "alias/../run/"])

    def link(place: Place) -> None:
        (place.here / "alias").symlink_to("run")

    return written(draw, f"{way}{name}", f"onto {way}{name}", OF_RUNS, link)


@KINDS.add
def a_file_that_the_run_has_not_yet(draw: Draw) -> Case:
    name = draw.choice(["base.safetensors", "adapter.safetensors", "ledger.jsonl"])
    return written(draw, f"run/{name}", f"as the run's {name}", ("translate", "embed", "compare attention"))


@KINDS.add
def another_name_of_a_file_of_the_run(draw: Draw) -> Case:
    name = draw.choice([*OWN[:-1], *WITHIN])

    def link(place: Place) -> None:
        (place.here / "out.txt").symlink_to(f"run/{name}")

    return written(draw, "out.txt", f"through a link to the run's {name}", OF_RUNS, link)


@KINDS.add
def a_file_of_another_run(draw: Draw) -> Case:
    name = draw.choice([*OWN[:-1], *WITHIN])
    return written(draw, f"other/{name}", f"onto another run's {name}", (), lambda place: place.copy("masked", "other"))


@KINDS.add
def the_input(draw: Draw) -> Case:
    way = draw.choice(["in.txt", "./in.txt", "alias/in.txt", "run/../in.txt"])

    def link(place: Place) -> None:
        (place.here / "alias").symlink_to(".")

    return written(
        draw, way, f"onto its own input as {way}", ("translate", "evaluate", "embed", "compare attention", "train a tokenizer"), link
    )


@KINDS.add
def the_reference(draw: Draw) -> Case:
    return written(draw, draw.choice(["target.txt", "./target.txt"]), "onto the reference translations", ("evaluate",))


@KINDS.add
def the_recipe(draw: Draw) -> Case:
    return written(draw, draw.choice(["recipe.toml", "./recipe.toml"]), "onto the recipe that is read", ("draw patterns",))


@KINDS.add
def an_input_that_is_a_link(draw: Draw) -> Case:
    def link(place: Place) -> None:
        (place.here / "link.txt").symlink_to("in.txt")

    case = written(draw, "OUT", "onto what the link leads to that is read", ("translate", "evaluate", "embed", "compare attention"), link)
    arguments = ["link.txt" if each == "in.txt" else "in.txt" if each == "OUT" else each for each in case.arguments]
    return Case(case.about, arguments, case.prepare)


@KINDS.add
def a_folder(draw: Draw) -> Case:
    name = draw.choice(["folder", "run", ".", "..", "/", "folder/", "run/checkpoints"])
    return written(draw, name, f"onto the folder {name}", (), lambda place: (place.here / "folder").mkdir())


@KINDS.add
def a_folder_that_is_not_there(draw: Draw) -> Case:
    name = draw.choice(
        ["missing/out", "missing/missing/out", "in.txt/out", "run/config.json/out", "missing/../out", "/proc/self/missing/out"]
    )
    return written(draw, name, f"into {name}")


@KINDS.add
def a_device_or_pipe(draw: Draw) -> Case:
    what = draw.choice(["/dev/full", "/dev/null", "/dev/zero", "/dev/stdout", "pipe", "socket"])

    def make(place: Place) -> None:
        if what == "pipe":
            os.mkfifo(place.here / "pipe")
        if what == "socket":
            folder = os.open(place.here, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(f"/proc/self/fd/{folder}/socket")  # the path of a socket must be short
            os.close(folder)

    return written(draw, what, f"into {what}", (), make)


@KINDS.add
def a_place_that_cannot_be_written(draw: Draw) -> Case:
    name = draw.choice(["/proc/version", "/proc/out", "/sys/out", "/sys/kernel/out", "/proc/self/mem", "/dev/fd/99"])
    return written(draw, name, f"into {name}")


@KINDS.add
def a_link_in_the_place(draw: Draw) -> Case:
    where = draw.choice(["out.txt", "missing", "/dev/null", "../outside", "run/config.json"])

    def link(place: Place) -> None:
        (place.here / "out.txt").symlink_to(where)

    return written(draw, "out.txt", f"onto a link to {where}", (), link)


@KINDS.add
def an_odd_name(draw: Draw) -> Case:
    name = draw.choice(["x" * 300, "x/" * 3_000 + "x", "", "x" * 4_097])
    return written(draw, name, f"to a name of {len(name)} characters")


def trained(draw: Draw, out: str, about: str, more: Callable[[Place], object], command: list[str] | None = None) -> Case:
    """Have a training begin in a bad place."""
    start = command or ["train", "translation", "--source", "GOOD/data/pairs.source", "--target", "GOOD/data/pairs.target", *SET]
    return Case(f"train: {about}", [*start, "--out", out], more, may_write=("run/.transom.lock",))


@KINDS.add
def a_folder_of_something_else(draw: Draw) -> Case:
    files = draw.choice(
        [["thesis.txt"], ["model.safetensors"], ["recipe.toml", "notes"], [".hidden"], ["checkpoints/step-1/state.json"], ["config.json"]]
    )
    more = ["--resume"] * draw.randrange(2)
    command = ["train", "copy", *more]
    return trained(
        draw, "out", f"into a folder of {files}", lambda place: [place.write(f"out/{name}", "precious") for name in files], command
    )


@KINDS.add
def the_folder_of_a_run(draw: Draw) -> Case:
    run = draw.choice(["translation", "masked", "images"])
    return trained(draw, "run", f"into a run of {run}, without --resume", lambda place: place.copy(run))


@KINDS.add
def the_run_of_another_task(draw: Draw) -> Case:
    run = draw.choice(["language", "masked", "classification", "instruction", "images"])
    command = ["train", "translation", "--source", "GOOD/data/pairs.source", "--target", "GOOD/data/pairs.target", *SET, "--resume"]
    return trained(draw, "run", f"on with a run of {run}", lambda place: place.copy(run), command)


@KINDS.add
def a_folder_within_a_run(draw: Draw) -> Case:
    out = draw.choice(["run/checkpoints", "run/checkpoints/step-4", "run/checkpoints/step-9"])
    return trained(draw, out, f"into {out}", lambda place: place.copy("translation"))


@KINDS.add
def the_run_that_it_starts_from(draw: Draw) -> Case:
    command = ["train", "text-masked", "--text", "GOOD/data/text.txt", "--init-from", "run", *draw.choice([[], ["--resume"]])]
    out = draw.choice(["run", "./run", "run/../run"])
    return trained(draw, out, "into the run that it starts from", lambda place: place.copy("masked"), command)


@KINDS.add
def no_folder_for_a_run(draw: Draw) -> Case:
    out = draw.choice(
        ["file", "file/run", "link", "pipe", "/dev/null", "/dev/null/run", "/proc/run", "x" * 300, "x/" * 3_000, "odd\udcff", "/sys/run"]
    )

    def write(place: Place) -> None:
        place.write("file", "precious")
        (place.here / "link").symlink_to("link")
        os.mkfifo(place.here / "pipe")

    return trained(draw, out, f"into {out!a:.40}", write)


@KINDS.add
def the_data_as_the_run(draw: Draw) -> Case:
    def write(place: Place) -> None:
        place.write("data/a.txt", "ab ba\n" * 50)

    out = draw.choice(["data", "data/a.txt", "./data"])
    return trained(draw, out, f"onto its own data as {out}", write, ["train", "text-bpe", "--text", "data", *SET])


@KINDS.add
def a_copy_of_a_recipe(draw: Draw) -> Case:
    name = draw.choice(["there.toml", "folder", "link", "missing/new.toml", "/dev/null", "/dev/full", "x" * 300, "pipe"])

    def write(place: Place) -> None:
        place.write("there.toml", "precious")
        (place.here / "folder").mkdir()
        (place.here / "link").symlink_to("nowhere")
        os.mkfifo(place.here / "pipe")

    return Case(f"recipes copy: to {name:.40}", ["recipes", "copy", "copy", name], write)
