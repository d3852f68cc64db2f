"""Answers of the page: one method per kind of request."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from transom import __version__
from transom.config.error_messages import validate
from transom.config.schema import Schema
from transom.errors import ConfigError
from transom.inspection.edits.schemas import reference_texts
from transom.inspection.edits.scope import edits as edit_scope
from transom.inspection.example_batch import SupportsFileInput
from transom.inspection.messages.tables import in_language
from transom.inspection.trace import names_of
from transom.serving.answers import (
    Json,
    answer_calculation,
    answer_head,
    answer_lens,
    answer_logits,
    answer_sweep,
    answer_tensor,
    encode_array,
    head_without,
)
from transom.serving.cache import Cache
from transom.serving.copied import copied
from transom.serving.descriptions import describe_certificates, describe_pass, describe_quantities, describe_tokens
from transom.serving.export import export_page
from transom.serving.passes import (
    Pass,
    estimate_bytes,
    number_error,
    open_map,
    recurrent_attention,
    run_pass,
    too_long_error,
)
from transom.serving.requests import (
    CalculationRequest,
    ExportRequest,
    HeadRequest,
    InputRequest,
    ModelRequest,
    PassRequest,
    PositionRequest,
    QuantitiesRequest,
    TensorRequest,
    TileRequest,
    TokensRequest,
    UploadRequest,
)
from transom.serving.served_model import InputFile, ModelInput, ServedModel, decode_upload
from transom.serving.tiles import TiledMap

MAX_PASSES = 24
"""Passes that stay in memory."""

MAX_MAPS = 4
"""Maps of long texts that stay in memory."""


class Explorer:
    """Answers requests about some models; one request at a time reads or edits a model."""

    def __init__(self, models: list[ServedModel], uploads: Path) -> None:
        """Store the models.

        Args:
            models: one model, or two that are compared.
            uploads: folder for uploaded files.
        """
        self.models, self._uploads = models, uploads
        self._files = dict[str, InputFile]()
        self._inputs, self._passes, self._maps = Cache[ModelInput](MAX_PASSES), Cache[Pass](MAX_PASSES), Cache[TiledMap](MAX_MAPS)
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[type[Schema], Callable[[Any], Json]]] = {
            "models": (Schema, self._models),
            "vocabulary": (ModelRequest, lambda request: {"symbols": self._model(request).symbols()}),
            "upload": (UploadRequest, lambda request: {"file": self._store(request.data, name=request.name), "name": request.name}),
            "tokens": (TokensRequest, self._tokens),
            "quantities": (QuantitiesRequest, self._quantities),
            "pass": (PassRequest, self._pass),
            "logits": (PositionRequest, lambda request: answer_logits(self._found(request), request)),
            "tensor": (TensorRequest, self._tensor),
            "calculation": (CalculationRequest, self._edited(self._calculation)),
            "certificates": (PassRequest, lambda request: describe_certificates(self._whole(request))),
            "lens": (PositionRequest, lambda request: answer_lens(self._whole(request), request)),
            "sweep": (PositionRequest, self._edited(answer_sweep)),
            "head": (HeadRequest, self._head),
            "tile": (TileRequest, self._tile),
            "export": (ExportRequest, self._export),
        }

    def answer(self, name: str, body: Mapping[str, Any]) -> Json:
        """Answer a request.

        Args:
            name: kind of request.
            body: its fields.

        Raises:
            ConfigError: there is no such kind of request, or a field does not match its schema or the model.
            TransomError: the input cannot be read.
        """
        if name not in self._answers:
            raise ConfigError(f"expected a request of the kind {', '.join(self._answers)}, found {name!r:.40}")
        schema, answer = self._answers[name]
        request = validate(schema, body, lambda path: f"request {name}")
        if name == "export":  # asks for other answers
            return answer(request)
        with self._lock:
            found = answer(request)
        return in_language(found, request.language) if isinstance(request, QuantitiesRequest) else found

    def warm_up(self) -> None:
        """List the names of all quantities, which takes seconds, before the first request needs them."""
        with self._lock:
            for model in self.models:
                names_of(model.network.config)

    def close(self) -> None:
        """Wait until no model computes; later requests wait for ever, so that the process can end."""
        self._lock.acquire()

    @cached_property
    def _described(self) -> list[Json]:
        return [model.describe() for model in self.models]

    def _models(self, _: Schema) -> Json:
        for described in self._described:
            for sample in described["samples"]:
                if "input" not in sample:  # pictures become uploaded files
                    sample["input"] = {"file": self._store(sample["thumbnail"].partition(",")[2], sample=sample.pop("sample"))}
        return {"version": __version__, "models": self._described, "comparable": self._comparable}

    @cached_property
    def _comparable(self) -> bool:
        """Whether two models have the same quantities and symbols, so that their difference can be shown."""
        named = [([(each.address, each.shape) for each in names_of(model.network.config)], model.symbols()) for model in self.models]
        return len(named) == 2 and named[0] == named[1]

    def _store(self, data: str, name: str = "", sample: str = "") -> str:
        """Store a file in base64, of which the person or the validation data have a name; return its identifier."""
        identifier, content = decode_upload(data)
        path = self._uploads / identifier
        path.write_bytes(content)
        self._files[identifier] = InputFile(path, name, sample)
        return identifier

    def _model(self, request: ModelRequest) -> ServedModel:
        if request.model >= len(self.models):
            raise number_error("model", len(self.models), request.model)
        return self.models[request.model]

    def _tokens(self, request: TokensRequest) -> Json:
        """Return the tokens of another input as a patch reads it."""
        model = self._model(request)
        return describe_tokens(model, model.read_reference(request.input, self._files))

    def _pass(self, request: PassRequest) -> Json:
        """Return what describes a pass."""
        return {**describe_pass(self._found(request)), "copied": copied(request, self._files)._asdict()}

    def _quantities(self, request: QuantitiesRequest) -> Json:
        """Return what the passes of an input compute."""
        return {"quantities": describe_quantities(self._model(request), self._input(request))}

    def _tensor(self, request: TensorRequest) -> Json:
        """Return a quantity; of an attention layer only if its maps are certified."""
        found = self._whole(request)
        found.require_certified_maps(request.name)
        return answer_tensor(found, request)

    def _calculation(self, found: Pass, request: CalculationRequest) -> Json:
        """Return the hand calculation of one element."""
        found.require_certified_maps(request.name)
        return answer_calculation(found, request, copied(request, self._files))

    def _input(self, request: QuantitiesRequest) -> ModelInput:
        """Return the input of a request."""
        model = self._model(request)
        return self._inputs.get((request.model, request.input), lambda: model.build_input(request.input, self._files))

    def _found(self, request: PassRequest) -> Pass:
        """Return the pass of a request."""
        model, given = self._model(request), self._input(request)
        plain = self._passes.find(request.without_edits().pass_key) if request.edits else None
        return self._passes.get(request.pass_key, lambda: run_pass(model, given, request, self._references(request), plain))

    def _references(self, request: PassRequest) -> dict[str, Any]:
        """Return the pictures or sounds from which the edits take values, by identifier.

        Raises:
            DataError: an edit of a model of pictures or sounds names a file that was not uploaded.
        """
        model = self._model(request)
        if not isinstance(model.run, SupportsFileInput):
            return {}
        wanted = [text for edit in request.edits for text in reference_texts(edit)]
        return {text: model.read_reference(InputRequest.model_construct(file=text), self._files) for text in wanted}

    def _whole(self, request: PassRequest) -> Pass:
        """Return the pass of a request, of which every site was kept.

        Raises:
            DataError: the text is too long.
        """
        found = self._found(request)
        if not found.whole:
            raise too_long_error(*estimate_bytes(found.model, found.input))
        return found

    def _edited(self, answer: Callable[[Pass, Any], Json]) -> Callable[[Any], Json]:
        """Return a function of a request that answers with the edits of the pass in force."""

        def with_edits(request: PassRequest) -> Json:
            found = self._whole(request)
            with self._scope(request):
                return answer(found, request)

        return with_edits

    def _scope(self, request: PassRequest) -> AbstractContextManager[Any]:
        if not request.edits:
            return nullcontext()
        return edit_scope(self._model(request).run, request.edits, inputs=self._references(request))

    def _head(self, request: HeadRequest) -> Json:
        """Return what one head does."""
        found = self._whole(request)
        found.require_certified_maps(f"{request.attention}.weights")
        switched = request.attention not in recurrent_attention(found.model)
        return answer_head(found, self._found(head_without(found, request)) if switched else found, request)

    def _tile(self, request: TileRequest) -> Json:
        """Return a tile of a map."""
        key = request.pass_key, request.attention, request.head
        tiled = self._maps.get(key, lambda: self._open_map(request))
        tile = tiled.tile(request.level, request.row, request.column)
        place = {"queries": tile.queries, "keys": tile.keys, "stride": tile.stride, "ratio": tile.ratio}
        return {**encode_array(tile.weights), **place}

    def _open_map(self, request: TileRequest) -> TiledMap:
        """Return the map of a head under the edits of a request."""
        found = self._found(request)
        with nullcontext() if found.whole else self._scope(request):
            return open_map(found, request.attention, request.head)

    def _export(self, request: ExportRequest) -> Json:
        """Return a page that holds the answers to some requests."""
        answers = {}
        for name, body in request.requests:
            if name in ("export", "upload"):
                raise ConfigError(f"requests: expected questions about models, found {name}; leave it out")
            answers[request_key(name, body)] = self.answer(name, body)
        return {"html": export_page(answers, request.state, request.language)}


def request_key(name: str, body: Mapping[str, Any]) -> str:
    """Return the key of a request in an exported page: the name and the canonical JSON of the body.

    >>> request_key("logits", {"position": 2, "model": 0})
    'logits {"model":0,"position":2}'
    """
    return f"{name} {json.dumps(body, sort_keys=True, separators=(',', ':'), ensure_ascii=False)}"
