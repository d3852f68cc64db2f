"""Data report for documents: sizes, lengths, duplicates, overlap of splits and unseen symbols."""

from collections.abc import Sequence

import numpy as np

from transom.data.reports import findings
from transom.data.reports.report import Report
from transom.data.split import Splits
from transom.data.text.documents import Documents
from transom.data.text.windows import Stream, WindowLoader
from transom.data.tokenizer.special import UNK
from transom.data.tokenizer.tokenizer import Tokenizer


def report_text(splits: Splits[Documents], streams: dict[str, Stream], tokenizer: Tokenizer, loader: WindowLoader) -> Report:
    """Examine the text of a run.

    Args:
        splits: all documents.
        streams: the token stream of each split, by name.
        tokenizer: tokenizer of the text.
        loader: loader of the training windows.

    Returns:
        A report with the statistics: per split, numbers of documents, characters, bytes, tokens, duplicates and documents that also occur
        in training (``text``), and the distribution of document lengths in tokens (``tokens``); the longest training documents with their
        origins (``longest``); per split except training, the symbols absent from the training data (``unseen``); number and length of the
        training windows (``windows``).
    """
    parts = splits.parts
    text = {name: _sizes(part, streams[name]) for name, part in parts.items()}
    seen, known = set(np.unique(streams["train"].tokens).tolist()), set(splits.train.texts)
    doubles = findings.again(splits.train.texts)
    problems = [f"train: {_named(splits.train, doubles, 'the same as an earlier one')}"] if doubles else []
    never = dict[str, findings.Row]()
    for name in list(parts)[1:]:
        also = [i for i, each in enumerate(parts[name].texts) if each in known]
        text[name]["also in training"] = len(also)
        if also:
            problems.append(f"{name}: {_named(parts[name], also, 'also in training')}, so its metrics are too optimistic")
        never[name] = findings.unseen(tokenizer, [streams[name].tokens.tolist()], seen)
        problems += findings.unseen_problems({name: never[name]})
    if tokenizer.kind != "bpe":
        for name, stream in streams.items():
            if n := int((stream.tokens == UNK).sum()):
                outside = findings.counted(n, "token")
                problems.append(f"{name}: {outside} outside the vocabulary; raise tokenizer.vocab_size or set tokenizer.kind = 'bpe'")
    lengths = {name: findings.distribution(stream.lengths) for name, stream in streams.items()}
    order = np.argsort(-streams["train"].lengths, kind="stable")[: findings.SHOWN].tolist()
    longest = [{"document": splits.train.places[i], "tokens": int(streams["train"].lengths[i])} for i in order]
    windows = {"windows": loader.n_samples, "tokens": loader.length, "a batch": loader.batch_windows}
    lines = []
    for name, facts in text.items():
        lines += [
            f"{name}: {findings.counted(int(facts['documents']), 'document')}, {facts['bytes']:,} bytes ({facts['from']})",
            f"  {facts['tokens']:,} tokens, {facts['bytes a token']:g} bytes per token;"
            f" median document {lengths[name]['median']:g}, longest {lengths[name]['longest']:,}",
        ]
    lines.append(f"windows: {loader.n_samples:,} of {loader.length:,} tokens per epoch, at most {loader.batch_windows:,} per batch")
    return Report(problems, {"text": text, "tokens": lengths, "longest": longest, "unseen": never, "windows": windows}, lines)


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


def _named(documents: Documents, samples: Sequence[int], what: str) -> str:
    places = findings.shown([documents.places[i] for i in samples])
    return f"{len(samples):,} of {findings.counted(len(documents), 'document')} {what} ({places})"
