"""Train a character-level language model on Shakespeare and report its loss in nats per character, per seed.

    python -m benchmarks.shakespeare --root data/tinyshakespeare [--recipe shakespeare-char] [--seeds 1 2 3] [--out runs/shakespeare]
        [--set FIELD=VALUE ...] [--validation] [--resume]

The reported text is the last tenth, nanoGPT's validation split. It is read once per seed, after training, in windows that do not overlap.
The weights are selected on the recipe's own validation text, which precedes it. benchmarks/results/shakespeare.json has one record per
seed.
"""

from pathlib import Path

from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.config.data import TextFilesConfig
from transom.data.text.documents import read_documents
from transom.decoding.predictors.generator import Generator
from transom.tasks.load import load

LAST_TENTH = TextFilesConfig(files="input.txt", start=0.9)
"""The text that is scored; nanoGPT trains on the first nine tenths."""


def main(arguments: list[str] | None = None) -> None:
    """Train one run per seed and write its loss on the last tenth."""
    parser = build_parser("shakespeare", __doc__, "shakespeare-char")
    parser.add_argument("--root", type=Path, required=True, help="folder with input.txt")
    args = parser.parse_args(arguments)
    root = args.root.resolve()

    def evaluate(folder: Path, seed: int) -> Record:
        (score,) = load(folder, "fp32", kind=Generator).score(read_documents(LAST_TENTH, root).texts)
        return {"loss": round(-score.log_p / score.n_tokens, 4), "n": score.n_tokens}

    run_trainings("shakespeare", args, arguments, lambda seed: [f"data.root={root}", f"training.seed={seed}"], evaluate, "loss", digits=4)


if __name__ == "__main__":
    main()
