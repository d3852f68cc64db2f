"""Enforce a budget of processor time per package, one thread per process, and no skips outside ``ALLOWED_SKIPS``."""

import gc
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from itertools import count
from statistics import fmean

import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch; processes that tests start inherit it
signal.signal(signal.SIGINT, signal.default_int_handler)  # a session in the background ignores Ctrl-C, and its children would too
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one under nohup the end of its terminal

SECONDS = {
    "agreement": 40,
    "bad_input": 45,
    "chaos": 20,
    "checkpoints": 35,
    "cli": 360,
    "config": 20,
    "data": 65,
    "decoding": 80,
    "docs": 45,
    "doctests": 20,
    "exchange": 90,
    "files": 15,
    "inspection": 260,
    "kernels": 100,
    "lab": 20,
    "layers": 90,
    "models": 140,
    "parallel": 30,
    "planning": 45,
    "serving": 45,
    "tasks": 40,
    "training": 130,
}
"""Maximum processor seconds of a package's first-tier tests, child processes included, on a machine where `probe` takes `PROBE` seconds."""

REST = 90
"""The same for what lies outside the packages."""

PROBE = 0.018
"""Processor seconds of `probe` between tests on the machine that the budgets were set on."""

LAST = pytest.StashKey[float]()
"""Processor time of this process and its children at the last report."""

_reports = count()

_COMPILED = "needs a C++ compiler, and a processor with AVX-512"
_BROWSER = "needs Chromium"
ALLOWED_SKIPS: dict[str, str] = {
    "tests/planning/test_memory.py::test_the_peak_is_that_since_it_was_reset": "needs Linux's /proc/self/clear_refs",
    "tests/kernels/test_native_decoder.py::test_steps_are_near_the_models": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_steps_of_a_language_model_are_near_its_own": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_a_text_is_the_same_beside_others_and_by_any_number_of_threads": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_sources_can_leave": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_a_row_is_the_same_beside_any_others_and_by_any_number_of_threads": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_products_equal_their_formula": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_activations_equal_pytorch_s": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_on_other_processors_the_numbers_are_the_same": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_searches_find_what_the_model_finds": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_what_is_compiled_and_what_is_not": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_8_bits_and_early_exits_are_refused_together": _COMPILED,
    "tests/kernels/test_native_decoder.py::test_without_memory_for_a_copy_of_the_weights_the_model_decodes": _COMPILED,
    "tests/decoding/test_encoder_backend.py::test_8_bits_are_near": _COMPILED,
    "tests/decoding/test_encoder_backend.py::test_8_bits_of_a_text_are_the_same_beside_others_and_by_any_number_of_threads": _COMPILED,
    "tests/cli/test_encoders.py::test_8_bits_change_answers_little": _COMPILED,
    "tests/kernels/test_traced_search.py::test_a_search_is_certified_and_reported_in_int8": _COMPILED,
    "tests/kernels/test_elementwise.py": "needs a C++ compiler",
    "tests/kernels/test_feed_forward.py": "needs a C++ compiler",
    "tests/kernels/test_log_probabilities.py": "needs a C++ compiler",
    "tests/kernels/test_matrix_unit.py": "needs AMX; test_emulated_matrix_unit.py runs these tests without it",
    "tests/kernels/test_native_attention.py": "needs AVX-512",
    "tests/kernels/test_native_build.py": _COMPILED,
    "tests/kernels/test_native_decoder_bounds.py": _COMPILED,
    "tests/kernels/test_native_greedy_search.py": _COMPILED,
    "tests/kernels/test_emulated_matrix_unit.py": _COMPILED,
    "tests/benchmarks/test_restricted.py": "needs unshare, g++ and the permission to create a mount namespace",
    "tests/training/test_resume.py::test_the_heap_checks_see_an_overrun": "needs glibc's heap checks",
    "tests/training/test_resume.py::test_no_altered_tensor_reaches_the_optimizer": "needs glibc's heap checks",
    "tests/kernels/test_kernel_registry.py::test_a_path_is_as_near_its_reference_as_the_table_says": "needs a C++ compiler and AMX",
    "tests/kernels/test_kernel_registry.py::test_packed_products_are_as_near_as_the_table_says": "needs a CPU with bfloat16",
    "tests/decoding/test_fused_inference.py::test_packed_products_are_near_the_plain_one": "needs a CPU with bfloat16",
    "tests/test_private_torch.py::test_products_are_packed_where_pytorch_and_the_processor_can": "needs a CPU with bfloat16",
    "tests/kernels/test_flex.py::test_the_compiled_kernel_equals_the_reference": "needs a GPU",
    "tests/training/test_compilation.py::test_compiled_steps_on_a_gpu_are_those_of_eager_passes": "needs a GPU",
    "tests/docs/test_executed_files.py::test_a_step_and_a_translation_enter_the_files_that_the_page_lists": _COMPILED + " and bfloat16",
    "tests/benchmarks/test_explore.py": _BROWSER,
    "tests/benchmarks/test_llama_cpp.py": "needs llama-cpp-python and gguf",
    "tests/benchmarks/test_onnx_runtime.py": "needs onnx and onnxruntime, of the extra bench",
    "tests/inspection/pages/test_report_pages.py": _BROWSER,
    "tests/parallel/test_hosts.py": "needs root, network namespaces, iproute2 and iptables",
    "tests/serving/conftest.py": _BROWSER,
    "tests/serving/test_accessibility.py": f"{_BROWSER}, and axe-core, which .ci/run installs",
    "tests/serving/test_cells.py": _BROWSER,
    "tests/serving/test_export.py": _BROWSER,
    "tests/serving/test_hostile_text.py": _BROWSER,
    "tests/serving/test_keyboard.py": _BROWSER,
    "tests/serving/test_page.py": _BROWSER,
}
"""Each test that may skip (its node id without parameters, or its file), and why. A skip elsewhere fails the session."""

BY_REFERENCE = os.environ.get("TRANSOM_KERNELS") == "reference"
"""Whether the session runs without kernels; tests marked ``kernels`` skip then, and only then may they."""

_KERNELS_ARE_OUT = "tests the kernels, which TRANSOM_KERNELS=reference leaves out"


settings.register_profile(  # the same examples on any machine, however slow
    "transom", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("transom")


def pytest_configure(config: pytest.Config) -> None:
    """Measure and watch in the session's main process."""
    if not hasattr(config, "workerinput"):
        first_tier = "not long" in str(config.getoption("markexpr")) and not BY_REFERENCE
        config.pluginmanager.register(Watch(first_tier), "transom-watch")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of the kernels in a session without them."""
    if BY_REFERENCE and item.get_closest_marker("kernels"):
        pytest.skip(_KERNELS_ARE_OUT)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    import torch  # not earlier: the shape checks are installed before anything of transom is imported

    torch.set_num_threads(1)
    gc.freeze()  # what collection has imported is not searched for garbage after each run
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in each report the processor time since the last one in this process, and in every 32nd report that of `probe`."""
    report = yield
    now = sum(os.times()[:4])
    report.user_properties.append(("processor", now - item.config.stash.get(LAST, now)))
    if next(_reports) % 32 == 0:
        report.user_properties.append(("probe", probe()))
    item.config.stash[LAST] = sum(os.times()[:4])
    return report


def package_of(path: str) -> str:
    """Name the package that a test file belongs to.

    >>> package_of("tests/data/test_text.py"), package_of("transom/data/text/text.py"), package_of("tests/test_architecture.py")
    ('data', 'doctests', 'tests')
    """
    parts = path.split("/")
    return "doctests" if parts[0] == "transom" else parts[1] if len(parts) > 2 else parts[0]


def probe() -> float:
    """Return the processor seconds of a fixed piece of work: other processes on the same core stretch it as they stretch the tests."""
    start = time.process_time()
    sum(i * i % 7 for i in range(200_000))
    return time.process_time() - start


class Watch:
    """Fail the session over a package whose tests are too slow or a skip that nobody allowed."""

    def __init__(self, first_tier: bool) -> None:
        """Start with nothing spent; budgets hold for the first tier only."""
        self.first_tier = first_tier
        self.probes: list[float] = []
        self.spent: dict[str, Counter[str]] = defaultdict(Counter)
        self.skipped: set[str] = set()
        self.reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up set-up, call and tear-down."""
        seconds = sum(seconds for name, seconds in report.user_properties if name == "processor")
        self.spent[package_of(report.nodeid.split("::")[0])][report.nodeid] += seconds
        self.probes += [seconds for name, seconds in report.user_properties if name == "probe"]
        if report.skipped and not (BY_REFERENCE and _KERNELS_ARE_OUT in str(report.longrepr)):
            self.skipped.add(report.nodeid.split("[")[0])
            self.reasons[str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """See files that skip as a whole."""
        if report.skipped:
            self.skipped.add(report.nodeid)

    def faults(self) -> list[str]:
        """Say what broke a rule."""
        slowness = max(1.0, fmean(self.probes or [PROBE]) / PROBE)
        slow = [
            f"package {package}: {tests.total():.0f} s of processor time, its budget is {SECONDS.get(package, REST)} s (tests/conftest.py) "
            f"times {slowness:.2f}, the slowness of this machine; "
            f"most by {', '.join(f'{test} ({seconds:.1f} s)' for test, seconds in tests.most_common(3))}"
            for package, tests in sorted(self.spent.items())
            if self.first_tier and tests.total() > SECONDS.get(package, REST) * slowness
        ]
        skips = [
            f"{name} was skipped and is not in ALLOWED_SKIPS (tests/conftest.py)"
            for name in sorted(self.skipped)
            if not {name, name.partition("::")[0]} & set(ALLOWED_SKIPS)
        ]
        return slow + skips

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a green session red."""
        if self.faults() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the faults and the time of each package."""
        totals = Counter({package: tests.total() for package, tests in self.spent.items()})
        packages = ", ".join(f"{package} {seconds:.0f}" for package, seconds in totals.most_common())
        terminalreporter.write_line(f"processor seconds per package: {packages}; of a probe on average {fmean(self.probes or [0.0]):.3f}")
        for reason, n in self.reasons.items():
            terminalreporter.write_line(f"{n} tests did not run. {reason}")
        for fault in self.faults():
            terminalreporter.write_line(f"FAILED {fault}", red=True)
