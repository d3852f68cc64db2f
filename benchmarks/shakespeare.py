"""What language models learn of Shakespeare, character by character: nats a character of the text's last tenth, seed by seed.

    python -m benchmarks.shakespeare --root data/tinyshakespeare [--recipe shakespeare-char] [--seeds 1 2 3] [--out runs/shakespeare]
        [--set FIELD=VALUE ...] [--validation] [--resume]

The last tenth is nanoGPT's validation split. It is read once a seed, at the end, in windows that do not overlap, by weights that were
chosen on the recipe's own validation text, which lies before it. benchmarks/results/shakespeare.json has a record a seed.
"""

from pathlib import Path

from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.config.data import TextFilesConfig
from transom.data.text.documents import read_documents
from transom.decoding.predictors.generator import Generator
from transom.tasks.load import load_as

REPORTED = TextFilesConfig(files="input.txt", start=0.9)
"""nanoGPT trains on the first nine tenths."""


def main(arguments: list[str] | None = None) -> None:
    """Train the seeds one after another and write what they reached."""
    parser = build_parser("shakespeare", __doc__, "shakespeare-char")
    parser.add_argument("--root", type=Path, required=True, help="folder with input.txt")
    args = parser.parse_args(arguments)
    root = args.root.resolve()

    def last_tenth(folder: Path, seed: int) -> Record:
        (score,) = load_as(Generator, folder, "fp32").score(read_documents(REPORTED, root).texts)
        return {"loss": round(-score.log_p / score.n_tokens, 4), "n": score.n_tokens}

    run_trainings("shakespeare", args, arguments, lambda seed: [f"data.root={root}", f"training.seed={seed}"], last_tenth, "loss", digits=4)


if __name__ == "__main__":
    main()
