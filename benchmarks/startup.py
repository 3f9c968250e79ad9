"""How long one waits for `srepr --help` and for `import srepr`, which must not load torch."""

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import Table, verdict

TIMES = 15
HELP_SECONDS = 0.3


def measure() -> list[Table]:
    program = shutil.which("srepr", path=str(Path(sys.executable).parent)) or "srepr"
    commands = {
        "an empty Python program": [sys.executable, "-c", ""],
        "import srepr": [sys.executable, "-c", "import srepr"],
        "srepr --help": [program, "--help"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(TIMES):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    table = Table(
        title="Start-up",
        how=f"Wall-clock seconds of a fresh process, {TIMES} of each in turn.",
        rows=[
            {"command": name, "median": median[name], "fastest": min(values), "slowest": max(values)}
            for name, values in seconds.items()
        ],
        verdicts=[
            verdict(
                f"`srepr --help` under {HELP_SECONDS} s",
                f"{median['srepr --help']:.2f} s",
                kept=median["srepr --help"] < HELP_SECONDS,
            )
        ],
    )
    return [table]
