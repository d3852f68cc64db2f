"""Runs of language models in the lm-evaluation-harness (Gao et al. 2024), under the name ``transom``.

    python -m transom.lm_eval --model transom --model_args run=runs/gpt --tasks hellaswag

The arguments are those of the harness's own command ``lm_eval``, which does not look for models of other packages. From Python, the import
of this module registers the model:

    import lm_eval
    import transom.lm_eval
    lm_eval.simple_evaluate("transom", model_args={"run": "runs/gpt"}, tasks=["hellaswag"])

Tokenization, truncation and windows follow the harness's model ``hf``, so that a run and its export get the same numbers.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transom.checkpoints.run_folder import RunFolder
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.split import text_hash
from transom.decoding.inference import merge_options
from transom.decoding.predictors.generator import Generator
from transom.decoding.search.interfaces import LengthLimits
from transom.decoding.search.loop import SearchRequest, log_probabilities, merge_end_tokens, search
from transom.decoding.search.sampling import MultinomialSampling
from transom.decoding.search.stop_strings import StopStrings, find_stop_string
from transom.errors import ConfigError, TransomError
from transom.tasks.load import PrecisionName, load

try:
    import lm_eval.models  # noqa: F401  # the harness looks up its own models only if none is registered
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError:
    raise ConfigError("transom.lm_eval needs the lm-evaluation-harness: pip install 'transom[lm-eval]'") from None

AUTO_BATCH_TOKENS = 8192
"""Tokens per batch, padding included, with ``batch_size = "auto"``."""

LOGIT_ROWS = 1024
"""Number of positions whose logits are in memory at once."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
"""Settings of a task's ``generation_kwargs`` that are read, besides ``until``, ``do_sample`` and the number of tokens."""


class _Scored(NamedTuple):
    """A continuation to score.

    Attributes:
        read: tokens that the model reads.
        labels: the continuation, which the last ``len(labels)`` positions predict.
    """

    read: tuple[int, ...]
    labels: list[int]


@register_model("transom")  # type: ignore[untyped-decorator, unused-ignore]
class TransomLM(TemplateLM):  # type: ignore[misc]
    """A language model of a run folder."""

    def __init__(
        self,
        run: str,
        precision: PrecisionName = "auto",
        batch_size: int | str = 1,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        seed: int = 1,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """Load a run.

        Args:
            run: the run folder.
            precision: dtype of the matrix products, as for ``transom.load``; fp32 for numbers that do not depend on the machine.
            batch_size: rows per batch, or "auto". No result depends on it.
            max_length: context window in tokens; by default that of the model.
            add_bos_token: whether the tokens before a text, such as BOS, precede each; by default as the tokenizer does it.
            prefix_token_id: token that precedes a text without context; by default the one before documents in training.
            seed: seed of sampling. The same prompt gets other random numbers each time a task repeats it.
            device: device; by default a GPU if there is one.
            max_batch_size: ignored; the harness gives it to every model.

        Raises:
            CheckpointError: the folder contains no intact run.
            ConfigError: the run is no language model, or an option is invalid.
        """
        super().__init__()
        self.run = str(run)
        self.generator = load(self.run, precision, kind=Generator)
        self.model, self.text_tokenizer = self.generator.model, self.generator.tokenizer
        if device is not None:
            self.model.to(device)
        window = self.model.config.max_seq_len
        if max_length is not None and not 1 <= max_length <= window:
            raise ConfigError(f"max_length: expected 1 to {window:,}, the context window of {self.run}, found {max_length}")
        if batch_size != "auto" and int(batch_size) < 1:
            raise ConfigError(f"batch_size: expected at least 1, or auto, found {batch_size}")
        self.max_length: int = max_length or window
        self.batch_size: int | None = None if batch_size == "auto" else int(batch_size)
        self.add_bos_token, self.seed = add_bos_token, seed
        self._prefix = self.text_tokenizer.special_tokens.document_start if prefix_token_id is None else prefix_token_id

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text."""
        return self.text_tokenizer.special_tokens.end

    @property
    def prefix_token_id(self) -> int:
        """Token that precedes a text without context."""
        return self._prefix

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness writes beside the results."""
        return {
            "model_num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "model_dtype": str(next(self.model.parameters()).dtype),
            "model_sha": RunFolder.open(Path(self.run)).run_id,
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Return the token ids of a text, after the tokens that the tokenizer puts before one."""
        given = self.add_bos_token if add_special_tokens is None else add_special_tokens
        template = self.text_tokenizer.special_tokens.template
        return [*(() if given is False else template.prefix), *self.text_tokenizer.encode(string)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return log p of each text, read in windows of ``max_length`` tokens that predict each token once."""
        windows = list[tuple[None, list[int], list[int]]]()
        owners = list[int]()
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (log_p, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += log_p
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **options: Any
    ) -> list[tuple[float, bool]]:
        """Return log p of each continuation, and whether it is what greedy decoding gives; a long context loses its first tokens."""
        scored = []
        for _, context, labels in requests:
            if len(labels) > self.max_length:
                raise ConfigError(
                    f"expected continuations of at most {self.max_length:,} tokens, the context window, found {len(labels):,}; leave out"
                    " this task"
                )
            scored.append(_Scored(tuple([*context, *labels][-(self.max_length + 1) : -1]), labels))
        found = dict[int, tuple[float, bool]]()
        with tqdm(total=len(requests), desc="Running loglikelihood requests", disable=disable_tqdm) as progress:
            for batch in self._batches([each.read for each in scored]):
                answers = self._score([scored[i] for i in batch])
                for i, answer in zip(batch, answers, strict=True):
                    found[i] = answer
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], answer)
                progress.update(len(batch))
        return [found[i] for i in range(len(requests))]

    def _batches(self, rows: Sequence[Sequence[int]], same_length: bool = False) -> Iterator[list[int]]:
        """Yield the indices of the rows of each batch, longest rows first and equal ones side by side."""
        batch = list[int]()
        for i in sorted(range(len(rows)), key=lambda i: (-len(rows[i]), rows[i])):
            longest = len(rows[batch[0]]) if batch else 0
            limit = self.batch_size or max(AUTO_BATCH_TOKENS // max(longest, 1), 1)
            if batch and (len(batch) == limit or (same_length and len(rows[i]) != longest)):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    @torch.inference_mode()
    def _score(self, batch: Sequence[_Scored]) -> list[tuple[float, bool]]:
        """Score continuations; the model reads equal rows, as those of choices of one token, only once."""
        numbers = {read: number for number, read in enumerate(dict.fromkeys(each.read for each in batch))}
        sequences = PaddedSequences.pad(list(numbers), self.text_tokenizer.special_tokens.padding).to(self.device)
        hidden = self.model.last_hidden_state(LanguageBatch(sequences, sequences.tokens, (0,)))
        rows = [numbers[each.read] for each in batch for _ in each.labels]
        positions = [len(each.read) - len(each.labels) + n for each in batch for n in range(len(each.labels))]
        labels = torch.tensor([label for each in batch for label in each.labels], device=self.device)
        chosen = hidden[rows, positions]
        log_p, greedy = list[float](), list[bool]()
        for part, of_part in zip(chosen.split(LOGIT_ROWS), labels.split(LOGIT_ROWS), strict=True):
            by_token = log_probabilities(self.model.unembedding(part))
            log_p += by_token.gather(1, of_part[:, None])[:, 0].double().tolist()
            greedy += (by_token.argmax(1) == of_part).tolist()
        answers, start = [], 0
        for each in batch:
            span = slice(start, start := start + len(each.labels))
            answers.append((sum(log_p[span]), all(greedy[span])))
        return answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each prompt, up to a string of ``until``; a long prompt loses its first tokens."""
        groups = dict[str, list[int]]()
        for i, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(i)
        found, seen = dict[int, str](), dict[str, int]()
        with tqdm(total=len(requests), desc="Running generate_until requests", disable=disable_tqdm) as progress:
            for members in groups.values():
                settings = self._settings(requests[members[0]].args[1])
                room = self.max_length - settings.max_new_tokens
                rows = [self.tok_encode(requests[i].args[0])[-room:] or [self.prefix_token_id] for i in members]
                samples = list[int]()
                for i in members:
                    prompt = requests[i].args[0]
                    samples.append((text_hash(prompt) << 32) + seen.setdefault(prompt, 0))
                    seen[prompt] += 1
                for batch in self._batches(rows, same_length=True):
                    texts = self._generate([rows[k] for k in batch], [samples[k] for k in batch], settings)
                    for k, text in zip(batch, texts, strict=True):
                        found[members[k]] = text
                        self.cache_hook.add_partial("generate_until", requests[members[k]].args, text)
                    progress.update(len(batch))
        return [found[i] for i in range(len(requests))]

    def _settings(self, given: Mapping[str, Any]) -> Any:
        """Return the settings of sampling: those of the run, overridden by those of the task.

        Raises:
            ConfigError: a setting is unknown, or the context window has no room for a prompt.
        """
        options = dict(normalize_gen_kwargs(dict(given), default_max_gen_toks=256))
        stop, n_new = handle_stop_sequences(options.pop("until", None), None), options.pop("max_gen_toks")
        if not options.pop("do_sample"):
            options["temperature"] = 0.0
        if unknown := [name for name in options if name not in SAMPLING]:
            raise ConfigError(f"generation_kwargs: expected {', '.join(SAMPLING)}, found {unknown[0]!r}; leave it out")
        if n_new >= self.max_length:
            raise ConfigError(
                f"max_gen_toks: expected fewer than {self.max_length:,}, the context window, found {n_new:,}; set max_gen_toks in"
                " --gen_kwargs"
            )
        fixed = {"early_exit_threshold": 1.0, "min_new_tokens": 0, "seed": self.seed}
        options = {**options, "max_new_tokens": n_new, **fixed}
        settings = merge_options(self.generator.sampling, options, list(options))
        return settings.model_copy(update={"stop": tuple(text for text in stop if text)})

    def _generate(self, rows: Sequence[list[int]], samples: Sequence[int], settings: Any) -> list[str]:
        """Continue prompts of equal length."""
        tokenizer, device = self.text_tokenizer, self.device
        special, padded = tokenizer.special_tokens, PaddedSequences.pad(rows, tokenizer.special_tokens.padding).to(device)
        seen = None
        if settings.repetition_penalty != 1:
            seen = torch.zeros(len(rows), tokenizer.vocab_size, dtype=torch.bool, device=device)
            seen.scatter_(1, padded.tokens, True)
        strategy = MultinomialSampling(special.end, settings, tuple(samples), 0, seen, special.padding)
        limits = LengthLimits(*(torch.full((len(rows),), n, device=device) for n in (0, settings.max_new_tokens + 1)))
        processors = merge_end_tokens(special, settings.temperature, device)
        if settings.stop:
            processors.append(StopStrings(settings.stop, tokenizer, special.end, [(row[-1], ()) for row in rows]))
        request = SearchRequest(padded, strategy, limits, padded.tokens[:, -1], special.end, processors)
        texts = [tokenizer.decode(best.tokens) for best, *_ in search(self.generator.decoder_backend, request)]
        return [text[: find_stop_string(text, settings.stop)] for text in texts]


def main(run: Callable[[], None] = cli_evaluate) -> None:
    """Run the harness's command; a user's mistake is one line and exit status 2."""
    try:
        run()
    except TransomError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
