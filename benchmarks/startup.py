"""Commands whose start-up time is measured, each in its own process."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from transom.checkpoints.run_files import TOKENIZER, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.config.data import PairTokenizerConfig, PhrasebookConfig
from transom.config.model import Seq2SeqConfig
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.models.build import build_model

SENTENCE = "Two dogs are playing in the snow."


def make_run(folder: Path, config: Seq2SeqConfig) -> Path:
    """Create a run folder of a randomly initialized model with this configuration and the phrasebook's vocabulary."""
    pairs = generate_phrasebook(PhrasebookConfig(n_train=2000, n_test=10)).train
    tokenizers = Tokenizers.train(pairs, PairTokenizerConfig(vocab_size=2000))
    vocab = tokenizers.source.vocab_size
    config = config.model_copy(update={"source_vocab_size": vocab, "target_vocab_size": vocab})
    torch.manual_seed(1)
    with RunFolder.create(folder / "run") as run:
        run.write_config(config, secrets.token_hex(16))
        run.write_tensors(WEIGHTS, build_model(config).state_dict(), step=0)
        run.write(TOKENIZER, tokenizers.to_bytes())
    return folder / "run"


def commands(run: Path) -> dict[str, Callable[[], object]]:
    """Return the commands to time, by name."""
    return {
        "python -c 'import torch'": lambda: run_python("-c", "import torch"),
        "transom --help": lambda: transom("--help"),
        "transom translate": lambda: transom("translate", str(run), SENTENCE),
    }


def transom(*arguments: str) -> str:
    """Run ``transom`` in its own process and return its output."""
    return run_python("-m", "transom", *arguments)


def run_python(*arguments: str) -> str:
    """Run Python in its own process and return its output."""
    command: Sequence[str] = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
