"""Every tensor comes back bit for bit, and every bad file is refused in one line."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from tests.models.tiny import seq2seq
from transom.checkpoints.tensors import MAX_HEADER_BYTES, hash_tensors, load_weights_into, read_specs, read_tensors, serialize_tensors
from transom.errors import CheckpointError
from transom.models.build import build_model

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def of_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Make a tensor of random bits: infinities, NaNs of every payload and negative zeros among them."""
    n_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
    bits = torch.randint(0, 256, (n_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (bits % 2 if dtype == torch.bool else bits).view(dtype).reshape(shape)


def bits(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def put(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.write_bytes(serialize_tensors(tensors))
    return path


def header(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    document = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert isinstance(document, dict)
    return document


def with_header(path: Path, document: object, body: bytes = b"") -> Path:
    text = json.dumps(document).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def small_model(**changes: object) -> torch.nn.Module:
    return build_model(seq2seq(**{"source_vocab_size": 9, "target_vocab_size": 9, **changes}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 3)], ids=str)
def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path, dtype, shape):
    tensor = of_bits(dtype, shape, seed=1)
    path = put(tmp_path / "a.safetensors", {"x": tensor})
    assert bits(read_tensors(path)["x"]) == bits(tensor)
    assert read_specs(path) == {"x": (dtype, shape)}


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 9)),
        max_size=5,
    )
)
def test_any_table_comes_back_and_the_library_reads_the_same(tmp_path_factory, table):
    tensors = {name: of_bits(dtype, tuple(shape), seed) for name, (dtype, shape, seed) in table.items()}
    path = put(tmp_path_factory.mktemp("any") / "a.safetensors", tensors)
    back, library = read_tensors(path), load_file(path)
    assert back.keys() == library.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert bits(back[name]) == bits(library[name]) == bits(tensor)


def test_generator_states_come_back(tmp_path):
    generator = torch.Generator().manual_seed(7)
    path = put(tmp_path / "a.safetensors", {"cpu": generator.get_state()})
    expected = torch.rand(5, generator=generator)
    generator.set_state(read_tensors(path)["cpu"])
    assert torch.equal(torch.rand(5, generator=generator), expected)


def test_one_tensor_under_two_names_is_stored_once(tmp_path):
    x, empty = torch.arange(6.0).reshape(2, 3), torch.empty(0)
    tensors = {"a": x, "b": x, "c": x.T, "d": x[1], "e": x.clone(), "f": x.view(3, 2), "g": empty, "h": empty}
    path = put(tmp_path / "a.safetensors", tensors)
    assert read_specs(path).keys() == tensors.keys() - {"b"}
    back = read_tensors(path)
    assert back["b"] is back["a"]
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert bits(back[name]) == bits(tensor)


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_tied_models_come_back(tmp_path, tie):
    torch.manual_seed(1)
    model, other = small_model(tie_embeddings=tie), small_model(tie_embeddings=tie)
    path = put(tmp_path / "model.safetensors", model.state_dict())
    assert len(read_specs(path)) == len(list(model.parameters()))
    load_weights_into(other, path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert (other.unembedding.weight is other.target_embedding.tokens.weight) == (tie != "none")


def test_what_is_read_owns_aligned_memory(tmp_path):
    path = put(tmp_path / "a.safetensors", {"x": torch.ones(3, dtype=torch.uint8), "y": torch.ones(1000)})
    back = read_tensors(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert back["y"].sum() == 1000
    assert all(tensor.data_ptr() % 64 == 0 for tensor in back.values())


def test_the_seal_finds_flipped_bits(tmp_path):
    """Bits all over a small file, one in turn: the file is refused, or (a bit of unused white space) says the same."""
    tensors = {"a": torch.arange(3.0), "b": torch.tensor(7, dtype=torch.uint8)}
    path = put(tmp_path / "a.safetensors", tensors)
    whole, expected = path.read_bytes(), hash_tensors(tensors)
    accepted = 0
    for bit in range(0, 8 * len(whole), 5):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            assert hash_tensors(read_tensors(path)) == expected
            accepted += 1
        except CheckpointError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
    assert accepted < 0.2 * 8 * len(whole) / 5  # the padding of the header, the name of its note


def test_the_same_tensors_give_the_same_bytes():
    tensors = {name: torch.arange(3.0) for name in "cabfed"}
    assert len({serialize_tensors(tensors) for _ in range(20)}) == 1


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = put(tmp_path / "a.safetensors", {"a": torch.arange(3.0), "b": torch.tensor(7, dtype=torch.uint8)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"truncated|damaged"):
            read_tensors(path)


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        read_tensors(path)


def test_other_kinds_of_file_are_named(tmp_path, monkeypatch):
    torch.save({"x": torch.ones(1)}, tmp_path / "zip.pt")
    torch.save({"x": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "text").write_text("these are not the weights you are looking for")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    monkeypatch.setattr("pickle.load", None)
    for name, words in {
        "zip.pt": "a pickle",
        "old.pt": "a pickle",
        "text": "expected safetensors, found a truncated file or another format",
        "empty": "truncated",
        "folder": "found a folder",
        "pipe": "found a device or a pipe",
        "outside": "expected a file inside its folder",
        "missing": "No such file",
    }.items():
        with pytest.raises(CheckpointError, match=words) as error:
            read_tensors(tmp_path / name)
        assert "\n" not in str(error.value)
        assert name in str(error.value)


def test_a_whole_file_that_begins_like_a_pickle_is_read(tmp_path):
    """A header of 128 bytes begins with 0x80, as a pickle does."""
    path = tmp_path / "a.safetensors"
    data = save({"x": torch.ones(1)}, {"pad": ""})
    data = save({"x": torch.ones(1)}, {"pad": "p" * (128 - int.from_bytes(data[:8], "little"))})
    path.write_bytes(data)
    assert data[:1] == b"\x80"
    assert read_tensors(path)["x"] == 1


def test_sizes_are_checked_before_anything_is_allocated(tmp_path):
    """Each header promises more than memory holds; if it were believed, the test would die."""
    path, huge = tmp_path / "a.safetensors", 2**50
    tensor = {"dtype": "F32", "shape": [huge], "data_offsets": [0, 4 * huge]}
    for document, body in [
        ({"x": tensor}, b""),
        ({"x": tensor | {"data_offsets": [0, 4]}}, b"1234"),
        ({"x": tensor | {"shape": [2**40, 2**40]}}, b"1234"),
        ({"x": tensor | {"shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        ({"x": tensor | {"shape": [1], "data_offsets": [4, 8]}}, b"1234"),
        ({"x": tensor | {"shape": [1], "data_offsets": [0, 4]}}, b"12345"),
        ({"x": tensor | {"dtype": "F4096"}}, b"1234"),
        ([], b""),
        ({"__metadata__": {"transom": 5}}, b""),
    ]:
        with_header(path, document, body)
        with pytest.raises(CheckpointError) as error:
            read_tensors(path)
        assert "\n" not in str(error.value)
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 8) + bytes(MAX_HEADER_BYTES + 8))
    with pytest.raises(CheckpointError, match="a header has at most"):
        read_tensors(path)
    path.write_bytes(struct.pack("<Q", 2**63) + bytes(64))
    with pytest.raises(CheckpointError, match="header of 9,223,372,036,854,775,808 bytes"):
        read_tensors(path)


TABLES = ["5", "[]", '{"y": "z"}', '{"x": "x"}', '{"y": 1}', '{"y": {"x": "x"}}']


@pytest.mark.parametrize("note", ["{", "[]", "[" * 10**5, '{"other": 1}', *(f'{{"tied": {table}}}' for table in TABLES)])
def test_a_hostile_table_of_tied_tensors_is_refused(tmp_path, note):
    path = tmp_path / "a.safetensors"
    path.write_bytes(save({"x": torch.ones(1)}, {"transom": note}))
    with pytest.raises(CheckpointError, match="tied tensors"):
        read_tensors(path)


def test_files_of_others_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(save({"x": torch.ones(2)}))
    assert torch.equal(read_tensors(path)["x"], torch.ones(2))


def test_another_models_weights_are_named(tmp_path):
    path = put(tmp_path / "model.safetensors", small_model().state_dict())
    for changes, words in {
        (("n_encoder_layers", 2),): r"16 missing \(first 'encoder\.blocks\.1\.",
        (("tie_embeddings", "none"), ("n_decoder_layers", 2)): r"28 missing \(first 'target_embedding\.tokens\.weight'",
        (("attention", "multihead"), ("norm_placement", "pre")): r"4 missing \(first 'encoder\.norm\.weight'\)",
        (("d_ff", 13),): r"expected shape \(13, 8\) of tensor 'encoder\.blocks\.0\.ff\.up\.weight', found \(12, 8\)",
        (("source_vocab_size", 10), ("target_vocab_size", 10)): r"expected shape \(10, 8\) of tensor .*, found \(9, 8\)",
    }.items():
        with pytest.raises(CheckpointError, match=words):
            load_weights_into(small_model(**dict(changes)), path)
    deeper = put(tmp_path / "deeper.safetensors", small_model(n_encoder_layers=2).state_dict())
    with pytest.raises(CheckpointError, match=r"16 unexpected \(first 'encoder\.blocks\.1\."):
        load_weights_into(small_model(), deeper)


def test_a_refused_file_leaves_the_model_alone(tmp_path):
    model = small_model()
    before = hash_tensors(model.state_dict())
    path = put(tmp_path / "model.safetensors", small_model().state_dict())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged, the hash of its tensors differs"):
        load_weights_into(model, path)
    assert hash_tensors(model.state_dict()) == before


def test_integers_in_the_place_of_weights_are_refused(tmp_path):
    state = small_model().state_dict()
    name = "encoder.blocks.0.ff.up.bias"
    path = put(tmp_path / "model.safetensors", state | {name: state[name].long()})
    with pytest.raises(CheckpointError, match=r"expected type torch\.float32 of tensor '.*ff\.up\.bias', found torch\.int64"):
        load_weights_into(small_model(), path)


def test_wide_weights_fit_a_narrow_model(tmp_path):
    model = small_model()
    path = put(tmp_path / "model.safetensors", {name: tensor.double() for name, tensor in model.state_dict().items()})
    other = small_model()
    load_weights_into(other, path)
    assert hash_tensors(other.state_dict()) == hash_tensors(model.state_dict())


def test_the_header_is_plain_safetensors(tmp_path):
    path = put(tmp_path / "a.safetensors", {"x": torch.ones(2), "y": torch.ones(2)})
    assert header(path).keys() == {"__metadata__", "x", "y"}
    with pytest.raises(SafetensorError):
        load(path.read_bytes()[:-1])
