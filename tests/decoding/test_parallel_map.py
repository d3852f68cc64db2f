"""Mapping jobs over threads returns the same results as a loop, and restores the number of threads."""

import threading
from collections.abc import Iterator

import pytest
import torch

from tests.decoding.models import letter_tokenizers, tiny_model
from transom.decoding.backends.decoder_backend import build_decoder_backend, plan_workers
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.decoding.backends.native_decoder import decoder_step_library
from transom.decoding.inference import parallel_map
from transom.decoding.predictors.translator import Translator


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_jobs_run_side_by_side_on_one_thread_each() -> None:
    together = threading.Barrier(3, timeout=60)

    def work(job: int) -> tuple[int, int]:
        together.wait()
        return job * job, torch.get_num_threads()

    assert sorted(parallel_map(work, range(6), 3)) == [(job, (job * job, 1)) for job in range(6)]
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("jobs", "n_workers"), [([4, 5], 1), ([7], 3), ([], 3)])
def test_what_one_worker_can_do_stays_in_this_thread_in_order(jobs: list[int], n_workers: int) -> None:
    found = list(parallel_map(lambda job: (threading.current_thread(), torch.get_num_threads()), jobs, n_workers))
    assert found == [(job, (threading.current_thread(), 3)) for job in jobs]


@pytest.mark.usefixtures("three_threads")
def test_an_error_comes_out_and_later_jobs_are_not_begun() -> None:
    begun: list[int] = []

    def work(job: int) -> None:
        begun.append(job)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(parallel_map(work, range(100), 2))
    assert len(begun) < 100 and torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("backend", ["model", "fused", "fastest"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translator_answers_in_order_whoever_did_the_work(backend: str, beam_size: int) -> None:
    tokenizers = letter_tokenizers()
    dtype = torch.float32 if backend == "fastest" else torch.float64
    model = tiny_model(tokenizers.target.vocab_size, seed=8, dtype=dtype, d_head=16, n_decoder_layers=1)
    chosen = {"model": lambda: None, "fused": lambda: FusedSeq2Seq(model), "fastest": lambda: build_decoder_backend(model)}[backend]()
    translator = Translator(model, tokenizers, decoder_backend=chosen)
    texts = ["a", "bad cab", "", "fed. abc!", "had a cab", "gag", "a"]
    told: list[tuple[int, int]] = []
    found = translator.translate(texts, beam_size=beam_size, max_length=9, notify=lambda *progress: told.append(progress))
    assert found == [translator.translate([text], beam_size=beam_size, max_length=9)[0] for text in texts]
    in_one_search = beam_size == 1 and decoder_step_library()[0] is not None and backend == "fastest"
    assert len(set(found)) > 4 and len(told) >= (1 if in_one_search else 3) and told[-1] == (6, 6)


@pytest.mark.usefixtures("three_threads")
def test_batches_at_the_same_time_are_as_many_as_threads() -> None:
    cpu, fused = torch.device("cpu"), FusedSeq2Seq(tiny_model(20))
    assert plan_workers(fused, cpu, 1) == plan_workers(fused, cpu, 4) == (3, 1)
    assert plan_workers(fused, torch.device("cuda"), 1) == (1, 1)
    if decoder_step_library()[0] is not None:
        native = build_decoder_backend(tiny_model(20, dtype=torch.float32, d_head=16))
        assert plan_workers(native, cpu, 1) == (1, 3)
        assert plan_workers(native, cpu, 4) == (3, 1)
        assert plan_workers(native, cpu, 1, n_searches=2) == (1, 3)
        assert plan_workers(native, cpu, 1, n_searches=3) == (3, 1)
