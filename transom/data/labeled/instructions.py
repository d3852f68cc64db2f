"""Loading of instructions with answers, for instruction tuning.

An instruction is a pair whose source is the prompt and whose target is the answer. Several instructions are packed into a row of a batch.

An instruction is encoded as ``[EOS] prompt [SOS] answer``, or with the tokenizer's own special tokens in these roles. Only the answer
tokens and the end token after them contribute to the loss. No prompt text can produce a special token.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from transom.config.data import ChatTemplateConfig, DataConfig, ExercisesConfig, InstructionFilesConfig
from transom.data.batch import Indices, LanguageBatch, PaddedSequences, sequence_lengths
from transom.data.labeled.chat import CONVERSATION_KEYS, conversation_samples
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs, split_validation
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, stateless_uniform
from transom.data.split import Splits, read_splits
from transom.data.synthetic.exercises import generate_exercises
from transom.data.text.json_lines import short_json
from transom.data.text.table_columns import ANSWER, CONTEXT, PROMPT
from transom.data.text.tabular import read_records, read_table, table_suffix
from transom.data.text.text_io import expand_path
from transom.data.tokenizer.special_tokens import OWN_TOKENS, SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError

N_SPECIAL_TOKENS = 2
"""Number of special tokens in an encoded instruction, before prompt and answer, without the end token of the labels."""

InstructionLengthPolicy = Literal["truncate", "drop", "refuse"]


def load_instructions(data: DataConfig, base: Path) -> Splits[Pairs]:
    """Read or generate the instructions of a recipe, as pairs of prompt and answer.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Raises:
        DataError: a file cannot be read, an instruction has no prompt or no answer, or there are too few instructions to split.
    """
    if isinstance(data.generate, ExercisesConfig):
        return generate_exercises(data.generate)
    root = base / expand_path(data.root)
    template = getattr(data, "chat_template", None)
    least = getattr(data, "min_valid", 0)
    return read_splits(data, lambda files: read_instructions(files, root, template), lambda pairs: split_validation(pairs, least=least))


def read_instructions(files: InstructionFilesConfig, root: Path, template: ChatTemplateConfig | None = None) -> Pairs:
    """Read instructions, as pairs of prompt and answer.

    A JSON or Parquet file may contain conversations (see ``data.labeled.chat``) instead of prompts and answers. If a file has a column of
    texts to which the prompts refer, such as ``input`` in the Alpaca data, each text is appended to its prompt after a blank line.

    Args:
        files: the file to read and its columns.
        root: folder to which the path in ``files`` is relative.
        template: template of the previous turns in a prompt, for conversations. None uses the default template.

    Raises:
        DataError: the file cannot be read, or a record has no prompt or no answer.
        ConfigError: the file's format is unknown, or a field does not fit the format.
    """
    path = root / expand_path(files.file)
    fields = (files.prompt_field, files.answer_field)
    if fields == (None, None) and _holds_conversations(path):
        return _read_conversations(path, template or ChatTemplateConfig())
    lines, (prompts, answers, contexts), notes, _ = read_table(path, (PROMPT, ANSWER, CONTEXT), (*fields, None), files.header)
    prompts = [f"{prompt}\n\n{context}" if context.strip() else prompt for prompt, context in zip(prompts, contexts, strict=True)]
    for line, prompt, answer in zip(lines, prompts, answers, strict=True):
        if not prompt.strip() or not answer.strip():
            missing = "answer" if prompt.strip() else "prompt"
            raise DataError(f"{path}:{line}: expected a prompt and its answer, found no {missing}; remove the line")
    return Pairs(prompts, answers, str(path), lines, notes)


def _holds_conversations(path: Path) -> bool:
    """Return whether a file is a JSON or Parquet file whose first record is a conversation."""
    if table_suffix(path) in (".tsv", ".csv"):
        return False
    _, record = next(read_records(path), (0, {}))
    return isinstance(record, dict) and any(key in record for key in CONVERSATION_KEYS)


def _read_conversations(path: Path, template: ChatTemplateConfig) -> Pairs:
    """Read a file of conversations, in which each answer of the assistant gives one instruction."""
    prompts, answers, lines, n_conversations = list[str](), list[str](), list[int](), 0
    for number, record in read_records(path):
        if not isinstance(record, dict) or not any(key in record for key in CONVERSATION_KEYS):
            raise DataError(
                f"{path}:{number}: expected a conversation as in the first record, found {short_json(record)}; correct or remove it"
            )
        n_conversations += 1
        for prompt, answer in conversation_samples(record, f"{path}:{number}", template):
            prompts.append(prompt)
            answers.append(answer)
            lines.append(number)
    if not prompts:
        raise DataError(f"{path}: expected conversations with answers of the assistant, found none; add conversations")
    return Pairs(prompts, answers, str(path), lines, (f"conversations: {n_conversations:,}; answers: {len(prompts):,}",))


@dataclass(frozen=True)
class Instructions:
    """Tokenized instructions that fit into the context window.

    Attributes:
        prompts: token ids of each prompt. A truncated prompt lacks its first tokens.
        answers: token ids of each answer.
        sample_ids: index of each instruction in the data set.
        n_tokens: number of tokens before truncation, including special tokens, of every instruction in the data set.
        truncated: indices in the data set of instructions with a truncated prompt.
        dropped: indices in the data set of instructions that were dropped.
        special_tokens: special tokens of the tokenizer.
    """

    prompts: list["array[int]"]
    answers: list["array[int]"]
    sample_ids: list[int]
    n_tokens: Indices
    truncated: list[int]
    dropped: list[int]
    special_tokens: SpecialTokens = OWN_TOKENS

    @classmethod
    def encode(cls, pairs: Pairs, tokenizer: Tokenizer, max_seq_len: int, too_long: InstructionLengthPolicy) -> "Instructions":
        """Tokenize instructions and fit them into the context window.

        Args:
            pairs: prompts and answers.
            tokenizer: tokenizer of prompts and answers.
            max_seq_len: maximum number of tokens per instruction, including special tokens.
            too_long: treatment of longer instructions. "truncate" removes the first tokens of the prompt, or drops the instruction if no
                token of the prompt would be left. "drop" drops the instruction. "refuse" raises an error.

        Raises:
            DataError: an instruction is too long and ``too_long`` is "refuse".
        """
        prompts, answers = encode(tokenizer, pairs.source), encode(tokenizer, pairs.target)
        n_tokens = sequence_lengths(prompts) + sequence_lengths(answers) + N_SPECIAL_TOKENS
        longer = np.flatnonzero(n_tokens > max_seq_len).tolist()
        if longer and too_long == "refuse":
            raise DataError(
                f"{pairs.describe_sample(longer[0])}: expected at most model.max_seq_len = {max_seq_len} tokens, special tokens included,"
                f" found {n_tokens[longer[0]]}; shorten it, or set data.too_long = 'truncate' or 'drop'"
            )
        room = {i: max_seq_len - N_SPECIAL_TOKENS - len(answers[i]) for i in longer}
        truncated = [i for i in longer if too_long == "truncate" and room[i] > 0]
        dropped = sorted(set(longer).difference(truncated))
        out, cut = set(dropped), set(truncated)
        kept = [i for i in range(len(pairs)) if i not in out]
        ends = [prompts[i][-room[i] :] if i in cut else prompts[i] for i in kept]
        return cls(ends, [answers[i] for i in kept], kept, n_tokens, truncated, dropped, tokenizer.special_tokens)

    @property
    def lengths(self) -> Indices:
        """Number of tokens of each instruction after truncation, including special tokens."""
        return sequence_lengths(self.prompts) + sequence_lengths(self.answers) + N_SPECIAL_TOKENS

    def batch(self, rows: Sequence[Sequence[int]]) -> LanguageBatch:
        """Build a batch of packed instructions.

        Each instruction is a segment of its own, with its prompt as the prefix.

        Args:
            rows: indices into ``prompts`` of the instructions in each row.
        """
        special, columns = self.special_tokens, tuple(list[list[int]]() for _ in range(5))
        for row in rows:
            for column in columns:
                column.append([])
            tokens, labels, positions, segments, prefix = (column[-1] for column in columns)
            for number, i in enumerate(row, 1):
                sequence = [*self.prompts[i], special.answer_start, *self.answers[i], special.end]
                n, n_prefix = len(sequence), 1 + len(self.prompts[i])
                tokens += [special.document_start, *sequence[:-1]]
                labels += sequence
                positions += range(n)
                segments += [number] * n
                prefix += [1] * n_prefix + [0] * (n - n_prefix)
        lengths = [len(row) for row in columns[0]]
        fills = special.padding, special.padding, 0, 0, 0
        filled = [
            torch.tensor([row + [fill] * (max(lengths) - len(row)) for row in column]) for column, fill in zip(columns, fills, strict=True)
        ]
        text = PaddedSequences(filled[0], filled[2], filled[3], torch.tensor(lengths), filled[4].bool())
        return LanguageBatch(text, filled[1], tuple(self.sample_ids[row[0]] for row in rows))


class InstructionLoader:
    """Loader of endless training batches of packed instructions, resumable at any position.

    Each epoch shuffles the instructions and puts each instruction into the first row of the batch with enough space (first-fit packing). A
    position is the number of instructions that all ranks together have read since the start of training. The position is the whole state
    of the loader.

    Attributes:
        pairs: all instructions, including dropped instructions.
        instructions: the tokenized instructions that were not dropped.
        n_samples: number of instructions per epoch.
        max_seq_len: maximum number of tokens per row.
        padding_waste: fraction of padding among the tokens of the first epoch.
    """

    def __init__(
        self,
        pairs: Pairs,
        instructions: Instructions,
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        micro_batching: MicroBatching = FULL_BATCH,
    ) -> None:
        """Set the row length and measure the padding of the first epoch.

        Args:
            pairs: all instructions, including dropped instructions.
            instructions: the tokenized instructions that were not dropped.
            max_seq_len: maximum number of tokens per row.
            batch_tokens: maximum number of tokens per batch, including padding, over all ranks and micro-batches.
            seed: random seed of the order of instructions.
            micro_batching: split of each batch over ranks and micro-batches.

        Raises:
            DataError: no instruction is left.
            ConfigError: an instruction is longer than a batch.
        """
        self.pairs, self.instructions, self.max_seq_len = pairs, instructions, max_seq_len
        self._lengths, self.n_samples = instructions.lengths, len(instructions.lengths)
        if not self.n_samples:
            raise DataError(f"{pairs.name}: expected instructions of at most {max_seq_len} tokens, found none; raise model.max_seq_len")
        if (longest := int(self._lengths.max())) > batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longest}, the tokens of the longest instruction, found {batch_tokens}; raise it"
                " or lower model.max_seq_len"
            )
        self._width = min(max_seq_len, batch_tokens)
        self._max_rows = batch_tokens // self._width
        self._seed, self._micro_batching = seed, micro_batching
        laid_out = [[int(self._lengths[row].sum()) for row in first_fit(batch, self._lengths, self._width)] for batch in self._plan(0)]
        self.padding_waste = 1 - int(self._lengths.sum()) / sum(len(rows) * max(rows) for rows in laid_out)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LanguageBatch]]]:
        """Yield batches endlessly, starting at a position.

        Yields:
            The position after the batch, which a checkpoint stores, and this rank's part of the batch as a list of micro-batches.
        """
        for end, _, batch in iterate_epochs(position, self.n_samples, self._plan):
            rows = first_fit(batch, self._lengths, self._width)
            yield (
                end,
                [self.instructions.batch([rows[i] for i in part.tolist()]) for part in self._micro_batching.split(np.arange(len(rows)))],
            )

    def describe_sample(self, sample: int) -> str:
        """Return the line number of the first instruction in a row as text, for messages."""
        return f"the row that starts with line {self.pairs.line_number(sample)}"

    def _plan(self, epoch: int) -> list[Indices]:
        order = np.argsort(stateless_uniform(self.n_samples, self._seed, epoch)[1], kind="stable")
        return pack_batches(order, self._lengths, self._width, self._max_rows)


def pack_batches(order: Indices, lengths: Indices, width: int, max_rows: int) -> list[Indices]:
    """Split ordered samples into consecutive batches that ``first_fit`` can pack into at most ``max_rows`` rows.

    Args:
        order: sample indices.
        lengths: number of tokens of each sample, by sample index.
        width: maximum number of tokens per row.
        max_rows: maximum number of rows per batch.
    """
    batches, start, rooms = list[Indices](), 0, list[int]()
    for end, length in enumerate(lengths[order].tolist()):
        row = next((i for i, room in enumerate(rooms) if length <= room), None)
        if row is None and len(rooms) == max_rows:
            batches.append(order[start:end])
            start, rooms = end, []
        if row is None:
            rooms.append(width - length)
        else:
            rooms[row] -= length
    return [*batches, order[start:]] if start < len(order) else batches


def first_fit(order: Indices, lengths: Indices, width: int) -> list[list[int]]:
    """Pack samples into rows of at most ``width`` tokens, putting each sample into the first row with enough space.

    >>> first_fit(np.arange(4), np.array([3, 4, 2, 1]), 6)
    [[0, 2, 3], [1]]
    """
    rows, rooms = list[list[int]](), list[int]()
    for sample in order.tolist():
        length = int(lengths[sample])
        row = next((i for i, room in enumerate(rooms) if length <= room), None)
        if row is None:
            row = len(rows)
            rows.append([])
            rooms.append(width)
        rows[row].append(sample)
        rooms[row] -= length
    return rows


def evaluation_batches(instructions: Instructions, max_seq_len: int, batch_tokens: int) -> list[LanguageBatch]:
    """Sort instructions by length, pack them into rows and batch the rows for a single pass over the data, such as validation.

    Args:
        instructions: tokenized instructions.
        max_seq_len: maximum number of tokens per row.
        batch_tokens: maximum number of tokens per batch. If it is smaller than ``max_seq_len``, each batch is a single row.
    """
    lengths = instructions.lengths
    order = np.argsort(lengths, kind="stable")
    batches = pack_batches(order, lengths, max_seq_len, max(1, batch_tokens // max_seq_len))
    return [instructions.batch(first_fit(batch, lengths, max_seq_len)) for batch in batches]
