"""Data report on documents, with sizes, lengths, duplicates, overlap of splits and unseen symbols."""

from collections.abc import Sequence

import numpy as np

from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.text.documents import Documents
from transom.data.text.windows import TokenStream, WindowLoader
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.files.message import phrase


def report_text(splits: Splits[Documents], streams: dict[str, TokenStream], tokenizer: Tokenizer, loader: WindowLoader) -> DataReport:
    """Examine the documents of a run and return a data report.

    Args:
        splits: documents of all splits.
        streams: token stream of each split, by the name of the split.
        tokenizer: tokenizer of the documents.
        loader: loader of the training windows.

    Returns:
        A report with these statistics:

        - ``text``: origin of each split, and its numbers of documents, characters, bytes, tokens and duplicates. For splits other than
          training, also the number of documents that occur in the training data.
        - ``tokens``: distribution of the lengths of each split's documents, in tokens.
        - ``longest``: origins and lengths of the longest training documents.
        - ``unseen``: symbols of each split other than training that are absent from the training data.
        - ``windows``: number of training windows, tokens per window and windows per batch.
    """
    parts = splits.parts
    text = {name: _sizes(part, streams[name]) for name, part in parts.items()}
    seen, known = set(np.unique(streams["train"].tokens).tolist()), set(splits.train.texts)
    duplicates = findings.duplicate_indices(splits.train.texts)
    problems = [_named("train", splits.train, duplicates, _EQUAL)] if duplicates else []
    never = dict[str, findings.SplitStatistics]()
    for name in list(parts)[1:]:
        also = [i for i, each in enumerate(parts[name].texts) if each in known]
        text[name]["also in training"] = len(also)
        if also:
            problems.append(_named(name, parts[name], also, _OVERLAP))
        never[name] = findings.unseen_symbols(tokenizer, [streams[name].tokens.tolist()], seen)
        problems += findings.unseen_problems({name: never[name]})
    if (unknown := tokenizer.special_tokens.unk_token_id) is not None:
        for name, stream in streams.items():
            if n := int((stream.tokens == unknown).sum()):
                problems.append(
                    phrase(
                        "data.outside_vocabulary",
                        "{name}: {tokens} outside the vocabulary; raise tokenizer.vocab_size or set tokenizer.kind = 'bpe'",
                        name=findings.split_name(name),
                        tokens=findings.count_noun(n, "token"),
                    )
                )
    lengths = {name: findings.length_distribution(stream.lengths) for name, stream in streams.items()}
    order = np.argsort(-streams["train"].lengths, kind="stable")[: findings.MAX_EXAMPLES].tolist()
    longest = [{"document": splits.train.origins[i], "tokens": int(streams["train"].lengths[i])} for i in order]
    windows = {"windows": loader.n_samples, "tokens": loader.window_length, "windows per batch": loader.windows_per_batch}
    statistics = {"text": text, "tokens": lengths, "longest": longest, "unseen": never, "windows": windows}
    lines = []
    for name, sizes in text.items():
        lines += [
            f"{name}: {findings.count_noun(int(sizes['documents']), 'document')}, {sizes['bytes']:,} bytes ({sizes['from']})",
            f"  {sizes['tokens']:,} tokens, {sizes['bytes per token']:g} bytes per token;"
            f" median document {lengths[name]['median']:g}, longest {lengths[name]['longest']:,}",
        ]
    lines.append(
        f"windows: {loader.n_samples:,} of {loader.window_length:,} tokens per epoch, at most {loader.windows_per_batch:,} per batch"
    )
    return DataReport(problems, statistics, lines, findings.reading_notes(parts))


def _sizes(documents: Documents, stream: TokenStream) -> dict[str, str | int | float]:
    n_bytes, n_tokens = documents.n_bytes, stream.n_tokens
    return {
        "documents": len(documents),
        "from": documents.name,
        "characters": sum(map(len, documents.texts)),
        "bytes": n_bytes,
        "tokens": n_tokens,
        "bytes per token": round(n_bytes / n_tokens, 3),
        "duplicates": len(documents) - len(set(documents.texts)),
    }


_EQUAL = ("data.equal_documents", "{name}: {number} {total} the same as an earlier one ({examples})")
_OVERLAP = ("data.overlap_of_documents", "{name}: {number} {total} also in training ({examples}), so its metrics are too optimistic")


def _named(name: str, documents: Documents, samples: Sequence[int], what: tuple[str, str]) -> str:
    """Return a message about some documents of a split, from its key and template."""
    examples = findings.first_examples([documents.origins[i] for i in samples])
    total = findings.out_of(len(documents), "document")
    return phrase(*what, name=findings.split_name(name), number=len(samples), total=total, examples=examples)
