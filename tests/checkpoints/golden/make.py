"""Make the golden run folder of the present format. See README.md."""

import json
from pathlib import Path

import torch

from transom.checkpoints.run_files import LOCK, TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.files.atomic_io import FORMAT_VERSION
from transom.layers.position_encoding import TabulatedPositionEncoding
from transom.models.build import build_model
from transom.tasks.task import build_training_setup
from transom.training.train_loop import train

HERE = Path(__file__).parent
SOURCE, TARGET = "c a b", "b a c"
TINY = {
    "data.generate": "{ kind = 'reverse', n_train = 200, n_valid = 10, n_test = 10, max_length = 5 }",
    "model.d_model": 8,
    "model.n_heads": 2,
    "model.d_ff": 12,
    "model.n_encoder_layers": 1,
    "model.n_decoder_layers": 1,
    "model.max_seq_len": 16,
    "training.max_steps": 20,
    "training.validate_every": 10,
    "training.checkpoint_every": 10,
    "training.batch_tokens": 200,
    "training.validate_bleu": 2,
    "training.average": "checkpoints",
    "training.precision": "fp32",
}


def logits(folder: Path) -> list[float]:
    """Compute, in float64, what the model of a run says of the first target token of ``SOURCE``."""
    run = RunFolder.open(folder)
    model = build_model(run.load_config())
    run.load_weights(model)
    tokenizers = Tokenizers.load(folder / TOKENIZER)
    source, target = tokenizers.source.encode(SOURCE), tokenizers.target.encode(TARGET)
    batch = TranslationBatch(PaddedSequences.pad([[*source, 2]]), PaddedSequences.pad([[1, *target]]), torch.tensor([[*target, 2]]), (0,))
    model = model.double().eval()
    for place in (module for module in model.modules() if isinstance(module, TabulatedPositionEncoding)):
        for name, table in place.named_buffers():
            setattr(place, name, table.float().double())  # positions as the run knew them, which was trained in float32
    with torch.no_grad():
        found: list[float] = model(batch)[0, 0].tolist()
    return found


def main() -> None:
    """Train the tiny run and note its logits."""
    folder = HERE / f"format-{FORMAT_VERSION}"
    assert not folder.exists(), f"{folder} is there already; a golden folder is never replaced"
    recipe = load_recipe("reverse", [f"{name}={value}" for name, value in TINY.items()])[0]
    with RunFolder.create(folder) as run:
        train(build_training_setup(recipe, Path("/"), run))
    (folder / LOCK).unlink()
    document = {"source": SOURCE, "target": TARGET, "logits": logits(folder)}
    folder.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
