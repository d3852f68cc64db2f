"""Run the native code under sanitizers (``make sanitize``): 0 findings, or exit code 1.

AddressSanitizer and UndefinedBehaviorSanitizer watch a library that Python searches with; ThreadSanitizer, which Python and PyTorch are not
built for, watches ``sanitize_driver.cpp`` alone. Leaks are not searched for: Python keeps most of what it allocates until the process ends.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from transom.files.cpu_info import cpu_flags
from transom.kernels.native_build import ELEMENTWISE, STEP, find_compiler

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMON = ["-O1", "-g", "-march=native", "-std=c++17", "-pthread", "-fno-omit-frame-pointer", "-DSANITIZED"]
ADDRESS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC"]
EMULATED = ["-include", str(HERE / "emulated_matrix_unit.h")]
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def build(source: Path, flags: list[str], out: Path) -> None:
    """Compile ``source``."""
    subprocess.run([*find_compiler().command, *COMMON, *flags, str(source), "-o", str(out)], check=True)


def runtime(name: str) -> str:
    """Find the shared library of a sanitizer."""
    found = subprocess.run([*find_compiler().command, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def in_python(arguments: list[str]) -> int:
    """Run Python under the address sanitizer's runtime."""
    preload = f"{runtime('libasan.so')} {runtime('libubsan.so')}"
    environment = {**os.environ, **OPTIONS, "LD_PRELOAD": preload, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT).returncode


def paths() -> str:
    """Name the paths of the products that ran."""
    units = {"amx_tile": "matrix unit (AMX)", "avx512_bf16": "AVX-512 with bfloat16", "avx512_vnni": "AVX-512 with VNNI"}
    return f"ran: {next(name for flag, name in units.items() if flag in cpu_flags())}, and the matrix unit emulated"


def main() -> int:
    """Build and run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planted", choices=["overrun", "race"], help="plant a fault, which must be found")
    planted = parser.parse_args().planted
    with tempfile.TemporaryDirectory() as work:
        codes = {}
        if planted != "race":
            for name, flags in {"": [], ", emulated matrix unit": EMULATED}.items():
                library = Path(work) / f"step{len(codes)}.so"
                build(STEP, [*ADDRESS, *flags], library)
                codes[f"address and undefined behavior{name}"] = in_python(
                    ["-m", "tests.kernels.sanitize_shapes", str(library), *(["planted"] if planted else [])]
                )
        if not planted:
            for name, flags in {"": [], ", emulated matrix unit": EMULATED}.items():
                library = Path(work) / f"elementwise{len(codes)}.so"
                build(ELEMENTWISE, [*ADDRESS, "-fopenmp-simd", *flags], library)
                code = in_python(["-m", "tests.kernels.sanitize_elementwise", str(library)])
                codes[f"address and undefined behavior, element-wise{name}"] = code
        if planted != "overrun":
            driver = Path(work) / "driver"
            build(HERE / "sanitize_driver.cpp", ["-fsanitize=thread", *(["-DPLANTED"] if planted else [])], driver)
            codes["threads"] = subprocess.run([str(driver)], env={**os.environ, **OPTIONS}).returncode
    for name, code in codes.items():
        print(f"{name}: {'0 findings' if code == 0 else f'FOUND something (exit code {code})'}")
    print(paths())
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
