"""Instructions: reading, errors, truncation, packing, and one pass per epoch in an order determined by the position."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transom.config.data import ExercisesConfig, InstructionFilesConfig, TokenizerConfig
from transom.data.labeled.instructions import (
    InstructionLoader,
    Instructions,
    evaluation_batches,
    first_fit,
    load_instructions,
    pack_batches,
    read_instructions,
)
from transom.data.pairs.pairs import Pairs
from transom.data.reports.instructions import report_instructions
from transom.data.sampler import MicroBatching
from transom.data.split import Splits
from transom.data.synthetic.exercises import generate_exercises
from transom.data.tokenizer.special_tokens import EOS, SOS
from transom.data.tokenizer.tokenizer import Tokenizer as Symbols
from transom.errors import ConfigError, DataError
from transom.tasks.instruction.schema import InstructionDataConfig

PAIRS = Pairs(["a b", "c", "a b c a b c", "b"], ["x", "y z x", "y", "x x x x x x x x"], "four", [3, 5, 6, 9])
SYMBOLS = Symbols.train(PAIRS.source + PAIRS.target, TokenizerConfig(kind="whitespace", vocab_size=20))


def loader(max_seq_len: int = 8, batch_tokens: int = 16, **more: Any) -> InstructionLoader:
    fitted = Instructions.encode(PAIRS, SYMBOLS, max_seq_len, "truncate")
    return InstructionLoader(PAIRS, fitted, max_seq_len=max_seq_len, batch_tokens=batch_tokens, seed=1, **more)


def test_every_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Say hi.\thi\nSay no.\tno, \n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "Two\\nlines", "answer": "ok"}\n')
    (tmp_path / "c.csv").write_text('id,question,reply\n1,"What, now?",this\n')
    read = read_instructions(InstructionFilesConfig(file="a.tsv"), tmp_path)
    assert (read.source, read.target) == (["Say hi.", "Say no."], ["hi", "no, "])
    assert read_instructions(InstructionFilesConfig(file="b.jsonl"), tmp_path).source == ["Two\nlines"]
    fields = InstructionFilesConfig(file="c.csv", prompt_field="question", answer_field="reply")
    assert read_instructions(fields, tmp_path).target == ["this"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n',
            r"a\.jsonl:2: expected the field 'answer', found fields 'prompt'",
        ),
        ("a.jsonl", '{"prompt": "a", "answer": 3}\n', r"a\.jsonl:1: expected text in the field 'answer', found 3"),
        ("a.jsonl", '{"prompt": ["a"], "answer": "b"}\n', r"a\.jsonl:1: expected text in the field 'prompt'"),
        ("a.jsonl", '{"prompt": "a", "answer": " "}\n', r"a\.jsonl:1: expected a prompt and its answer, found no answer; remove the line"),
        ("a.tsv", "a\tb\n\tb\n", r"a\.tsv:2: expected a prompt and its answer, found no prompt"),
        ("a.tsv", "a b\n", r"a\.tsv:1: expected at least 2 columns"),
        ("a.txt", "a\tb\n", r"expected a \.tsv, \.csv, \.jsonl, \.json or \.parquet file"),
    ],
)
def test_what_is_wrong_is_said(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises((DataError, ConfigError), match=message):
        read_instructions(InstructionFilesConfig(file=name), tmp_path)


def test_validation_is_split_off_by_hash(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"add one to {i}\t{i + 1}\n" for i in range(300)))
    splits = load_instructions(InstructionDataConfig(train=InstructionFilesConfig(file="a.tsv")), tmp_path)
    assert len(splits.train) + len(splits.valid) == 300 and 0 < len(splits.valid) < 15 and "held out" in splits.valid.name
    assert not set(splits.train.source) & set(splits.valid.source)


def test_what_is_too_long_loses_the_beginning_of_its_prompt_or_is_left_out_or_refused() -> None:
    cut = Instructions.encode(PAIRS, SYMBOLS, 8, "truncate")
    assert (cut.truncated, cut.dropped, cut.sample_ids) == ([2], [3], [0, 1, 2]), "an answer of 8 tokens has no room beside a prompt"
    assert cut.n_tokens.tolist() == [5, 6, 9, 11] and cut.lengths.tolist() == [5, 6, 8]
    assert SYMBOLS.decode(cut.prompts[2]) == "b c a b c"
    dropped = Instructions.encode(PAIRS, SYMBOLS, 8, "drop")
    assert (dropped.truncated, dropped.dropped, dropped.sample_ids) == ([], [2, 3], [0, 1])
    with pytest.raises(DataError, match=r"four, line 6: expected at most model.max_seq_len = 8 tokens, .* found 9; shorten it"):
        Instructions.encode(PAIRS, SYMBOLS, 8, "refuse")
    assert Instructions.encode(PAIRS, SYMBOLS, 11, "refuse").sample_ids == [0, 1, 2, 3]


def test_a_row_holds_whole_instructions_and_answers_alone_count() -> None:
    batch = Instructions.encode(PAIRS, SYMBOLS, 16, "refuse").batch([[0, 1], [3]])
    (a, b, c), (x, y, z) = SYMBOLS.encode("a b c"), SYMBOLS.encode("x y z")
    assert batch.decoder_input.tokens[0].tolist() == [EOS, a, b, SOS, x, EOS, c, SOS, y, z, x]
    assert batch.labels[0].tolist() == [a, b, SOS, x, EOS, c, SOS, y, z, x, EOS]
    assert batch.decoder_input.positions[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert batch.decoder_input.segments[0].tolist() == [1] * 5 + [2] * 6
    assert batch.labels[0][batch.loss_mask[0]].tolist() == [x, EOS, y, z, x, EOS]
    assert batch.n_target_tokens == 6 + 9 and batch.sample_ids == (0, 3)
    short = Instructions.encode(PAIRS, SYMBOLS, 16, "refuse").batch([[0], [1]])
    assert (
        short.decoder_input.segments[0].tolist() == [1] * 5 + [0]
        and not short.loss_mask[0, 5]
        and short.decoder_input.lengths.tolist() == [5, 6]
    )
    assert torch.equal(short.to(torch.device("cpu")).loss_mask, short.loss_mask)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=60), st.integers(10, 30), st.integers(1, 4))
def test_batches_hold_everything_once_and_fit(lengths: list[int], width: int, most_rows: int) -> None:
    sizes, order = np.array(lengths), np.random.default_rng(len(lengths)).permutation(len(lengths))
    batches = pack_batches(order, sizes, width, most_rows)
    assert np.concatenate(batches).tolist() == order.tolist()
    for batch in batches:
        rows = first_fit(batch, sizes, width)
        assert len(rows) <= most_rows and sorted(i for row in rows for i in row) == sorted(batch.tolist())
        assert all(sizes[row].sum() <= width for row in rows)


def test_the_order_is_one_number_and_each_epoch_another() -> None:
    whole = loader()
    stream = whole.batches_from(0)
    seen = [next(stream) for _ in range(12)]
    for i in range(1, 11):
        end, (batch,) = next(whole.batches_from(seen[i - 1][0]))
        assert end == seen[i][0] and torch.equal(batch.decoder_input.tokens, seen[i][1][0].decoder_input.tokens)
    assert len({tuple(batch.sample_ids) for _, (batch,) in seen}) > 2


def test_shards_and_slices_share_a_batch() -> None:
    (whole,) = next(loader(batch_tokens=64).batches_from(0))[1]
    parts = [
        batch for shard in (0, 1) for batch in next(loader(batch_tokens=64, micro_batching=MicroBatching(1, shard, 2)).batches_from(0))[1]
    ]
    assert sum(batch.n_target_tokens for batch in parts) == whole.n_target_tokens
    assert sorted(sample for batch in parts for sample in batch.sample_ids) == sorted(whole.sample_ids)


def test_what_cannot_be_batched_is_said() -> None:
    with pytest.raises(ConfigError, match=r"batch_tokens: expected at least 8, .* found 7"):
        loader(batch_tokens=7)
    with pytest.raises(DataError, match="expected instructions of at most 3 tokens, found none"):
        loader(max_seq_len=3)


def test_validation_reads_each_once() -> None:
    fitted = Instructions.encode(PAIRS, SYMBOLS, 16, "refuse")
    batches = evaluation_batches(fitted, 16, 16)
    assert sum(batch.n_target_tokens for batch in batches) == sum(len(answer) + 1 for answer in fitted.answers)


def test_the_report_names_what_a_person_should_look_at() -> None:
    twice = Pairs([*PAIRS.source, "a b"], [*PAIRS.target, "y"], "five")
    splits = Splits(twice, PAIRS)
    read = {name: Instructions.encode(part, SYMBOLS, 8, "truncate") for name, part in (("train", twice), ("valid", PAIRS))}
    made = report_instructions(splits, read, SYMBOLS, InstructionLoader(twice, read["train"], max_seq_len=8, batch_tokens=16, seed=1))
    text = "\n".join(made.lines())
    assert "train: 5 instructions (five)" in text and "of the tokens contribute" in text
    assert "warning: train: 1 prompt with another answer than an earlier equal prompt: lines 1 and 5" in text
    assert "train: 1 instruction longer than the 8 tokens of the context window; only the end of the prompt is kept (line 3)" in text
    assert "train: 1 instruction longer than the 8 tokens of the context window; dropped (line 4)" in text
    assert "valid: 4 of 4 instructions also in training, so its metrics are too optimistic" in text
    assert made.statistics["answer_fraction"] == pytest.approx((2 + 4 + 2 + 2) / (5 + 6 + 8 + 5)) and json.dumps(made.to_json())


def test_exercises_are_right_and_held_out() -> None:
    splits = generate_exercises(ExercisesConfig(n_train=600, n_valid=60, n_test=60))
    assert (len(splits.train), len(splits.valid)) == (600, 60) and splits.test is not None and len(splits.test) == 60
    everywhere = [pair for part in (splits.train, splits.valid, splits.test) for pair in zip(part.source, part.target, strict=True)]
    assert len({prompt for prompt, _ in everywhere}) == len(everywhere)
    rules = {"Copy": list, "Reverse": lambda letters: letters[::-1], "Sort": sorted}
    kinds = dict.fromkeys([*rules, "Translate into Spanish", "Translate into English"], 0)
    for prompt, answer in everywhere:
        kind, text = prompt.split(": ", 1)
        kinds[kind] += 1
        assert kind not in rules or answer.split() == rules[kind](text.split())
    assert min(kinds.values()) > 100
    assert ("Translate into Spanish: hello world", "hola mundo") in list(zip(splits.test.source, splits.test.target, strict=True))
