"""What language models learn of Shakespeare, character by character: nats a character of the text's last tenth, seed by seed.

    python -m benchmarks.shakespeare --root data/tinyshakespeare [--recipe shakespeare-char] [--seeds 1 2 3] [--out runs/shakespeare]
        [--set FIELD=VALUE ...] [--validation]

The last tenth is nanoGPT's validation split. It is read once a seed, at the end, in windows that do not overlap, by weights that were
chosen on the recipe's own validation text, which lies before it. benchmarks/results/shakespeare.json has a record a seed.
"""

import time
from pathlib import Path

import transom
from benchmarks.learning import Record, command_line, learn
from transom.config.data import TextFiles
from transom.decoding.generator import Generator
from transom.decoding.load import load_as
from transom.inputs.documents import read_documents
from transom.planning.parameters import count_parameters

REPORTED = TextFiles(files="input.txt", start=0.9)
"""nanoGPT trains on the first nine tenths."""


def one_seed(recipe: str, root: Path, seed: int, out: Path, overrides: list[str], validation: bool) -> Record:
    """Train a seed and, unless only validation counts, score it on the last tenth."""
    start, folder = time.monotonic(), out / f"seed-{seed}"
    run = transom.train(recipe, out=folder, overrides=[f"data.root={root}", f"training.seed={seed}", *overrides], overwrite=True)
    minutes, generator = round((time.monotonic() - start) / 60, 2), load_as(Generator, folder, "fp32")
    config = generator.model.config
    sizes = {"parameters": count_parameters(config).total, "context": config.max_seq_len}
    record: Record = {"recipe": recipe, "seed": seed, **sizes, "minutes": minutes, "steps": run.step, "validation": run.best}
    if validation:
        return record
    (score,) = generator.score(read_documents(REPORTED, root).texts)
    return record | {"loss": round(-score.log_p / score.n_tokens, 4), "n": score.n_tokens}


def main(arguments: list[str] | None = None) -> None:
    """Train the seeds one after another and write what they reached."""
    parser = command_line("shakespeare", __doc__, "shakespeare-char")
    parser.add_argument("--root", type=Path, required=True, help="folder with input.txt")
    asked = parser.parse_args(arguments)
    root = asked.root.resolve()

    def one(seed: int) -> Record:
        return one_seed(asked.recipe, root, seed, asked.out, asked.overrides, asked.validation)

    learn("shakespeare", asked, arguments, one, "loss", places=4)


if __name__ == "__main__":
    main()
