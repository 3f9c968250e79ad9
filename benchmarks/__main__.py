"""Run every benchmark, print the tables, and write them to results/ with the command, the machine and the versions."""

import json
import os
import platform
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import startup, throughput
from srepr.runs import provenance

RESULTS = Path(__file__).parents[1] / "results"


def processor() -> str:
    """The processor's name and the widest vector instructions that torch uses on it."""
    import torch

    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    about = {
        "command": "make bench",
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "processor": processor(),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "versions": ", ".join(f"{name} {version}" for name, version in provenance()["versions"].items()),
    }
    tables = []
    for benchmark in (startup, throughput):
        tables.append(benchmark.measure())
        print(tables[-1].markdown())
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items())
    text = "\n".join(["# Benchmarks", "", facts, "", *(table.markdown() for table in tables)])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "benchmarks.md").write_text(text.rstrip() + "\n")
    content = {**about, "tables": [asdict(table) for table in tables]}
    (RESULTS / "benchmarks.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
