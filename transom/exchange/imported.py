"""The file ``imported.json`` of a run folder: origin and settings of an imported model."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from transom.checkpoints.run_files import IMPORTED
from transom.checkpoints.run_folder import RunFolder
from transom.errors import CheckpointError
from transom.files.atomic_io import FORMAT_VERSION, json_bytes
from transom.files.safe_read import describe_validation_error, read_json


class Imported(BaseModel):
    """Origin and settings of an imported model.

    Attributes:
        format_version: version of the run folder's format.
        model_type: ``model_type`` of the foreign configuration.
        architecture: foreign class of the model.
        task: our task, whose predictor loads the model.
        decoding: settings of that task's decoding, which the foreign files determine.
        files: foreign JSON files by name, as far as an export writes them again: settings of generation, tokenizer and images.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    model_type: str
    architecture: str
    task: str
    decoding: dict[str, Any] = {}
    files: dict[str, dict[str, Any]] = {}

    def write(self, folder: RunFolder) -> None:
        """Write the file."""
        folder.write(IMPORTED, json_bytes(self.model_dump()))

    @classmethod
    def read(cls, folder: RunFolder) -> "Imported | None":
        """Read the file of a run folder; None if the run was not imported.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = folder.path / IMPORTED
        if not path.exists():
            return None
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise CheckpointError(f"{path}: {describe_validation_error(error)}; import the model again") from error
