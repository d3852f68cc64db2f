"""Folders made to break an import are refused in one line, in bounded time and memory, and nothing is written or executed."""

import json
import os
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.exchange.foreign_models import CASES, ForeignCase
from transom.errors import TransomError
from transom.exchange.foreign_folder import ForeignFolder
from transom.exchange.import_folder import new_run
from transom.exchange.import_model import new_run_id, open_foreign_model, write_weights

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
SECONDS, MIB = 5.0, 200
"""Most processor time and most additional memory of a refusal."""

Attack = Callable[[Path], None]


def edit_config(**fields: Any) -> Attack:
    """Return an attack that sets fields of ``config.json``."""

    def attack(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | fields))

    return attack


def edit_sizes(value: Any) -> Attack:
    """Return an attack that sets every size of ``config.json``: those of the vocabulary, widths and numbers of layers."""

    def attack(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        sizes = [name for name, old in config.items() if type(old) is int and old > 3 and not name.endswith("_id")]
        (folder / CONFIG).write_text(json.dumps(config | dict.fromkeys(sizes, value)))

    return attack


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Attack:
    """Return an attack that changes the tensors."""

    def attack(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file({name: x.clone() for name, x in tensors.items()}, folder / WEIGHTS, {"format": "pt"})

    return attack


def first(tensors: dict[str, torch.Tensor]) -> str:
    """Return the name of the first matrix."""
    return next(name for name, x in sorted(tensors.items()) if x.dim() == 2)


def set_nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors[first(tensors)].view(-1)[3] = float("nan")


def set_infinity(tensors: dict[str, torch.Tensor]) -> None:
    tensors[first(tensors)].view(-1)[-1] = -float("inf")


def enlarge(tensors: dict[str, torch.Tensor]) -> None:
    name = first(tensors)
    tensors[name] = torch.cat([tensors[name], tensors[name]])


def to_integers(tensors: dict[str, torch.Tensor]) -> None:
    name = first(tensors)
    tensors[name] = tensors[name].to(torch.int8)


def add_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.backdoor.weight"] = torch.zeros(2, 2)


def remove_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[first(tensors)]


def edit_header(change: Callable[[dict[str, Any], int], Any]) -> Attack:
    """Return an attack that changes the header of the weights; ``change`` gets the header and the number of data bytes."""

    def attack(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        change(header, len(data))
        text = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data)

    return attack


def a_tensor(header: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a tensor in a header."""
    entry: dict[str, Any] = next(value for name, value in header.items() if name != "__metadata__")
    return entry


def overlap(header: dict[str, Any], n: int) -> None:
    entries = [value for name, value in header.items() if name != "__metadata__"]
    entries[1]["data_offsets"] = entries[0]["data_offsets"]


def beyond_the_end(header: dict[str, Any], n: int) -> None:
    a_tensor(header)["data_offsets"] = [n, n + 2**40]


def lie_about_shape(header: dict[str, Any], n: int) -> None:
    a_tensor(header)["shape"] = [2**31, 2**31]


def negative_offset(header: dict[str, Any], n: int) -> None:
    a_tensor(header)["data_offsets"] = [-8, 8]


def unknown_dtype(header: dict[str, Any], n: int) -> None:
    a_tensor(header)["dtype"] = "OBJECT"


def write_weights_bytes(content: bytes) -> Attack:
    """Return an attack that replaces the weights."""
    return lambda folder: (folder / WEIGHTS).write_bytes(content) and None


def truncate(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) * 2 // 3])


def index_of(shard: str) -> Attack:
    """Return an attack that lists all tensors in a file of this name."""

    def attack(folder: Path) -> None:
        names = list(load_file(folder / WEIGHTS))
        if "/" not in shard and shard != WEIGHTS:
            (folder / WEIGHTS).rename(folder / "elsewhere.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, shard)}))

    return attack


def two_shards(change: Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], Any]) -> Attack:
    """Return an attack on a model in two files; ``change`` alters their tensors after the index is made."""

    def attack(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        names = sorted(tensors)
        parts = [{name: tensors[name] for name in names[k::2]} for k in range(2)]
        files = [f"model-0000{k + 1}-of-00002.safetensors" for k in range(2)]
        weight_map = {name: file for part, file in zip(parts, files, strict=True) for name in part}
        change(*parts)
        for part, file in zip(parts, files, strict=True):
            save_file(part, folder / file, {"format": "pt"})
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return attack


def repeat_in_both(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    name = next(iter(left))
    right[name] = left[name]


def lose_one(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    del right[next(iter(right))]


def mix_models(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    for name, x in list(right.items()):
        right[name] = torch.cat([x, x], -1)


def link_outside(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    (folder / WEIGHTS).symlink_to(folder.parent / "outside.safetensors")


def pipe_instead(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def folder_instead(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()


def exploit(folder: Path) -> bytes:
    """Return a pickle that creates a file when it is read: open(path, "w")."""
    return b"\x80\x02cio\nopen\n(V" + str(folder.parent / "executed").encode() + b"\nVw\ntR."


def pickle_only(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(exploit(folder))


def pickle_named_safetensors(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(exploit(folder))


def write_config(content: bytes) -> Attack:
    """Return an attack that replaces ``config.json``."""
    return lambda folder: (folder / CONFIG).write_bytes(content) and None


ATTACKS: dict[str, Attack] = {
    "vocabulary of 2^31": edit_sizes(2**31),
    "sizes of 0": edit_sizes(0),
    "negative sizes": edit_sizes(-1),
    "sizes of 10^30": edit_sizes(10**30),
    "texts as sizes": edit_sizes("__import__('os').system('true')"),
    "lists as sizes": edit_sizes([8, 8]),
    "NaN as sizes": edit_sizes(float("nan")),
    "code of its own": edit_config(auto_map={"AutoModel": "evil.Evil"}),
    "quantized": edit_config(quantization_config={"quant_method": "bitsandbytes"}),
    "unknown family": edit_config(model_type="evil"),
    "a number as family": edit_config(model_type=7),
    "no architecture": edit_config(architectures=[]),
    "another architecture": edit_config(architectures=["EvilForCausalLM"]),
    "a text as architectures": edit_config(architectures="x"),
    "configuration is a list": write_config(b"[1, 2]"),
    "configuration is no JSON": write_config(b"{'model_type': "),
    "configuration is binary": write_config(b"\x80\x04\x95" + bytes(range(256))),
    "configuration is deep": write_config(b'{"a":' * 5000 + b"1" + b"}" * 5000),
    "configuration is endless": write_config(b'{"a": "' + b"x" * (70 * 2**20) + b'"}'),
    "configuration is a folder": folder_instead,
    "weights with NaN": edit_tensors(set_nan),
    "weights with infinity": edit_tensors(set_infinity),
    "weights of another shape": edit_tensors(enlarge),
    "weights of integers": edit_tensors(to_integers),
    "one tensor more": edit_tensors(add_tensor),
    "one tensor less": edit_tensors(remove_tensor),
    "overlapping tensors": edit_header(overlap),
    "a tensor beyond the end": edit_header(beyond_the_end),
    "a shape that lies": edit_header(lie_about_shape),
    "a negative offset": edit_header(negative_offset),
    "an unknown dtype": edit_header(unknown_dtype),
    "a truncated file": truncate,
    "an endless header": write_weights_bytes(struct.pack("<Q", 2**62) + b"{}"),
    "a header that is no JSON": write_weights_bytes(struct.pack("<Q", 8) + b"{'a': 1}"),
    "an empty file": write_weights_bytes(b""),
    "a shard above the folder": index_of("../outside.safetensors"),
    "a shard with an absolute path": index_of("/etc/passwd"),
    "a shard that is a device": index_of("/dev/zero"),
    "a shard that is missing": index_of("model-00001-of-00001.safetensors"),
    "a shard with a null byte": index_of("a\0.safetensors"),
    "an index without a map": lambda folder: (folder / INDEX).write_text('{"weight_map": []}') and None,
    "a tensor in two shards": two_shards(repeat_in_both),
    "a shard without a tensor": two_shards(lose_one),
    "shards of two models": two_shards(mix_models),
    "a link out of the folder": link_outside,
    "a pipe": pipe_instead,
    "a pickle": pickle_only,
    "a pickle with another name": pickle_named_safetensors,
}
FEW = tuple(case for case in CASES if "-" not in case.name or case.name.endswith("-masked"))
"""One case per family."""


def attacks_by_family() -> Iterator[Any]:
    """Yield each attack with several families: 200 pairs, each family with a quarter of the attacks or more."""
    for number, name in enumerate(ATTACKS):
        for k in range(5):
            case = FEW[(number * 7 + k * 3) % len(FEW)]
            yield pytest.param(case, name, id=f"{case.name}-{name}", marks=[] if k == 0 else [pytest.mark.long])


@pytest.mark.parametrize(("case", "attack"), list(attacks_by_family()))
def test_hostile_folders_are_refused(case: ForeignCase, attack: str, tmp_path: Path) -> None:
    folder = case.save(tmp_path / "theirs")
    (tmp_path / "outside.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    ATTACKS[attack](folder)
    before = {path for path in tmp_path.rglob("*") if path.name != "run"}
    start, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TransomError) as raised, new_run(tmp_path / "run") as run:
        model = open_foreign_model(ForeignFolder(folder), case.from_data)
        run.write_config(model.config, new_run_id())
        write_weights(model, run)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 700 and "expected" in message, message
    assert time.process_time() - start < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MIB * 1024
    assert {path for path in tmp_path.rglob("*") if "run" not in path.parts} == before
    assert not (tmp_path / "executed").exists() and not (tmp_path / "run" / "config.json").exists()


def test_every_attack_has_its_families() -> None:
    pairs = list(attacks_by_family())
    assert len(pairs) >= 200 and {pair.values[1] for pair in pairs} == {*ATTACKS}
    assert {pair.values[0].model_type for pair in pairs} == {case.model_type for case in CASES}
