"""The translation task, with its training data, its loss, and validation by loss, BLEU and chrF."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Self

import torch

from transom.config.data import PhrasebookConfig
from transom.data.batch import TranslationBatch, translation_batch
from transom.data.pairs.loader import PairLoader, length_sorted_batches
from transom.data.pairs.multilingual import MultilingualLoader
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.baseline import BaselineMetric, count_tokens, frequency_baseline, validation_labels
from transom.data.reports.pairs import report_languages
from transom.data.split import Splits
from transom.data.text.input_profile import InputProfile
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.predictors.results import Alignment
from transom.decoding.predictors.translator import Translator
from transom.errors import DataError
from transom.files.message import phrase
from transom.inspection.alignment import align, cross_attention_addresses
from transom.models.base import Network, Seq2SeqModel
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.pairs import load_tokenized_pairs, train_pair_tokenizers
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask
from transom.tasks.translation.schema import TranslationDataConfig, TranslationRecipe
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.translation_metrics import corpus_scores
from transom.training.validation import validation_losses, validation_translation_scores


class TranslationTask(TextTask[TranslationRecipe, PairLoader | MultilingualLoader, Mapping[str | None, Pairs]]):
    """The translation task, with tokenized sentence pairs."""

    PREDICTOR: ClassVar[type] = Translator

    @classmethod
    def read(cls, recipe: TranslationRecipe, context: TaskContext) -> Self:
        """Read the sentence pairs, train or load the tokenizers, and build the data report.

        Raises:
            TransomError: the data cannot be read or do not fit the recipe.
        """
        text = load_tokenized_pairs(recipe, context, translation_batch, recipe.data.languages)
        splits, tokenizers, loaders = text.splits, text.tokenizers, text.loaders
        sizes = {"source_vocab_size": tokenizers.source.vocab_size, "target_vocab_size": tokenizers.target.vocab_size}
        recipe = text.recipe.with_fields("model", **sizes)
        batch_tokens, max_seq_len = recipe.training.batch_tokens, recipe.model.max_seq_len
        tagged = {to: loader for to, loader in loaders.items() if to is not None}
        mixture = MultilingualLoader(tagged, recipe.data.sampling_temperature) if tagged else None
        valid_batches = {
            to: length_sorted_batches(each.valid, tokenizers, batch_tokens, max_seq_len, source_prefix=loaders[to].source_prefix)
            for to, each in splits.items()
        }
        target = tokenizers.target
        rows, around = [row for loader in loaders.values() for row in loader.token_rows[1]], target.special_tokens.seq2seq.surround([])
        counts = count_tokens(rows, target.vocab_size, around)
        labels = validation_labels(batch for of_language in valid_batches.values() for batch in of_language)
        baseline = frequency_baseline(counts, labels, "token")
        baseline += _most_frequent_translation(splits, recipe.training.validate_bleu, tokenizers.target.lowercase)
        train, valid = ([text for each in splits.values() for text in each.parts[part].source] for part in ("train", "valid"))
        return cls(
            recipe=recipe,
            tokenizers=tokenizers,
            loader=mixture or loaders[None],
            valid={to: each.valid for to, each in splits.items()},
            valid_batches=valid_batches,
            report=report_languages(splits, tokenizers, loaders, mixture).with_baseline(baseline),
            data_hash=fingerprint(*(part for each in splits.values() for part in (each.train, each.valid)), tags=list(tagged)),
            input_profile=InputProfile.from_texts(train, valid),
        )

    def objective(self, model: Network) -> Objective:
        """Return the training loss that the recipe chooses, which is cross-entropy or R-Drop."""
        return choose_text_loss(self.recipe.training)

    def flops(self, batch: TranslationBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch, padding included."""
        return count_flops(
            self.recipe.model, len(batch.sample_ids), batch.source.tokens.shape[1], batch.decoder_input.tokens.shape[1]
        ).training

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss and the perplexity.

        With several target languages, each metric is computed over all sentence pairs, and also over the pairs of each language. The key of
        the latter contains the tag of the language, such as ``loss/de``.
        """
        assert isinstance(model, Seq2SeqModel)
        return validation_losses(model, self.valid_batches, autocast)

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Translate validation sentences, and return BLEU and chrF, with keys as in ``evaluate``, and a few of the translations."""
        assert isinstance(model, Seq2SeqModel)
        n_sentences = self.recipe.training.validate_bleu
        if not n_sentences:
            return {}, ()
        return validation_translation_scores(model, self.valid, n_sentences, self.tokenizers, self.recipe.decoding, precision.dtype)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Translator:
        assert isinstance(run.model, Seq2SeqModel) and run.tokenizers is not None
        languages = None if run.recipe is None else languages_of(run.recipe.data)
        return Translator(run.model, run.tokenizers, run.decoding, run.precision, run.decoder_backend, languages, run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: TranslationRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_pair_tokenizers(recipe, base, notify, recipe.data.languages)

    def alignments(self, model: Network, samples: Iterable[Mapping[str, str]]) -> Iterator[Alignment]:
        """Yield the alignment of each sample's source with its translation, if the model has cross-attention.

        Samples with an empty translation, and samples that exceed the context window, are skipped.
        """
        if not (isinstance(model, Seq2SeqModel) and cross_attention_addresses(model)):
            return
        for sample in samples:
            if sample["translation"].strip():
                try:
                    yield align(model, self.tokenizers, sample["source"], sample["translation"], to=sample.get("to"))
                except DataError:
                    continue


def _most_frequent_translation(splits: Mapping[str | None, Splits[Pairs]], n_sentences: int, lowercase: bool) -> list[BaselineMetric]:
    """Return the validation BLEU of a baseline that always predicts the most frequent training target of the language.

    The list is empty if no validation sentence is translated.
    """
    answers, references = list[str](), list[str]()
    for each in splits.values():
        references += each.valid.target[:n_sentences]
        (most_frequent, _), *_ = Counter(each.train.target).most_common(1)
        answers += [most_frequent] * len(each.valid.target[:n_sentences])
    if not references:
        return []
    bleu = corpus_scores(answers, references, lowercase=lowercase)["bleu"]
    predictor = phrase("baseline.translation", "always answering the most frequent translation")
    return [BaselineMetric("bleu", bleu, predictor)]


def languages_of(data: TranslationDataConfig) -> str | None:
    """Return the source and target language of the data in the form "en to de", or None if they are unknown.

    The languages of files are read from the endings of their names, such as ``.en`` and ``.de.gz``. The phrasebook has known languages.
    """
    if isinstance(data.generate, PhrasebookConfig):
        return "en to es"
    if data.train is None or data.train.source is None or data.train.target is None:
        return None
    endings = [re.search(r"\.([a-z]{2,3})(\.gz)?$", name) for name in (data.train.source, data.train.target)]
    codes = [found[1] for found in endings if found is not None and found[1] != "txt"]
    return " to ".join(codes) if len(codes) == 2 else None
