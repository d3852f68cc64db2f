"""What is known of documents before step 1: sizes, lengths, doubles, overlap, symbols never seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transom.data.reports.report import SHOWN, Distribution, Report, Row, again, counted, distribution, shown, unseen, unseen_problems
from transom.data.split import Splits
from transom.data.text.documents import Documents
from transom.data.text.windows import Stream, WindowLoader
from transom.data.tokenizer.special import UNK
from transom.data.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextReport(Report):
    """The facts of the text.

    Attributes:
        text: for each split its documents, origin, characters, bytes, tokens, doubles, and documents that also stand in training.
        tokens: for each split the distribution of the documents' lengths in tokens.
        longest: the longest training documents, with their places.
        unseen: for each split but training's, the symbols that training never shows.
        windows: how the training text is cut.
    """

    text: dict[str, dict[str, str | int | float]]
    tokens: dict[str, Distribution]
    longest: list[Row]
    unseen: dict[str, Row]
    windows: dict[str, int]

    def figures(self) -> list[str]:
        """Give all but the problems for people."""
        lines = []
        for name, facts in self.text.items():
            lengths = self.tokens[name]
            lines += [
                f"{name}: {counted(int(facts['documents']), 'document')}, {facts['bytes']:,} bytes ({facts['from']})",
                f"  {facts['tokens']:,} tokens, {facts['bytes a token']:g} bytes each;"
                f" a document's median {lengths['median']:g}, longest {lengths['longest']:,}",
            ]
        w = self.windows
        return [*lines, f"windows: {w['windows']:,} of {w['tokens']:,} tokens an epoch, at most {w['a batch']:,} a batch"]


def report_text(splits: Splits[Documents], streams: dict[str, Stream], tokenizer: Tokenizer, loader: WindowLoader) -> TextReport:
    """Examine the text of a run.

    Args:
        splits: all documents.
        streams: the same as tokens, by the split's name.
        tokenizer: of the text.
        loader: of the training windows.
    """
    parts = splits.parts
    text = {name: _sizes(part, streams[name]) for name, part in parts.items()}
    seen, known = set(np.unique(streams["train"].tokens).tolist()), set(splits.train.texts)
    problems, never = _doubles(splits.train), dict[str, Row]()
    for name in list(parts)[1:]:
        also = [i for i, each in enumerate(parts[name].texts) if each in known]
        text[name]["also in training"] = len(also)
        if also:
            problems.append(f"{name}: {_named(parts[name], also, 'also in training')}, so its figures flatter")
        never[name] = unseen(tokenizer, [streams[name].tokens.tolist()], seen)
        problems += unseen_problems({name: never[name]})
    if tokenizer.kind != "bpe":
        for name, stream in streams.items():
            if n := int((stream.tokens == UNK).sum()):
                problems.append(f"{name}: {counted(n, 'token')} outside the vocabulary; raise tokenizer.vocab_size or take kind = 'bpe'")
    lengths = {name: distribution(stream.lengths) for name, stream in streams.items()}
    order = np.argsort(-streams["train"].lengths, kind="stable")[:SHOWN].tolist()
    longest: list[Row] = [{"document": splits.train.places[i], "tokens": int(streams["train"].lengths[i])} for i in order]
    windows = {"windows": loader.n_samples, "tokens": loader.length, "a batch": loader.batch_windows}
    return TextReport(problems, text, lengths, longest, never, windows)


def _sizes(documents: Documents, stream: Stream) -> dict[str, str | int | float]:
    n_bytes, n_tokens = documents.n_bytes, stream.n_tokens
    return {
        "documents": len(documents),
        "from": documents.name,
        "characters": sum(map(len, documents.texts)),
        "bytes": n_bytes,
        "tokens": n_tokens,
        "bytes a token": round(n_bytes / n_tokens, 3),
        "doubles": len(documents) - len(set(documents.texts)),
    }


def _doubles(documents: Documents) -> list[str]:
    found = again(documents.texts)
    return [f"train: {_named(documents, found, 'the same as an earlier one')}"] if found else []


def _named(documents: Documents, samples: Sequence[int], what: str) -> str:
    return f"{len(samples):,} of {counted(len(documents), 'document')} {what} ({shown([documents.places[i] for i in samples])})"
