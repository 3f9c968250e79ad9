"""Run the benchmarks, all or those named (`python -m benchmarks throughput`), print them and write them to results/.

Each keeps its date, machine and versions; one that is not run again keeps its old numbers.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import Table, stage2, startup, throughput
from srepr.run.folder import provenance
from srepr.storage.files import write_json

RESULTS = Path(__file__).parents[1] / "results"
BENCHMARKS = {"startup": startup.measure, "throughput": throughput.measure, "stage2": stage2.measure}


def processor() -> str:
    """The processor's name and the widest vector instructions that torch uses on it."""
    import torch

    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def about(name: str) -> dict[str, str]:
    """What someone who wants to measure it again needs to know."""
    return {
        "command": f"python -m benchmarks {name}",
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "machine": processor(),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "versions": ", ".join(f"{package} {version}" for package, version in provenance()["versions"].items()),
    }


def main() -> None:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        raise SystemExit(f"no benchmark is called {', '.join(sorted(unknown))}. Known: {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    store = RESULTS / "benchmarks.json"
    for name in names:
        entry = {"about": about(name), "tables": [asdict(table) for table in BENCHMARKS[name]()]}
        results = {**(json.loads(store.read_text()) if store.exists() else {}), name: entry}
        write_json(store, {known: results[known] for known in BENCHMARKS if known in results})
        print(markdown(entry))
    text = "\n".join(markdown(entry) for entry in json.loads(store.read_text()).values())
    (RESULTS / "benchmarks.md").write_text(f"# Benchmarks\n\nMade by `make bench`.\n\n{text}")


def markdown(entry: Mapping[str, Any]) -> str:
    tables = [Table(**table).markdown() for table in entry["tables"]]
    facts = [f"{name}: {value}" for name, value in entry["about"].items()]
    return "\n".join([*tables, "; ".join(facts) + ".", ""])


if __name__ == "__main__":
    main()
