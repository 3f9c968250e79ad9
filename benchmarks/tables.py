"""What `srepr reproduce` measured on a data set, gathered: results/SOURCE.json (rows) and SOURCE.md (tables).

python -m benchmarks.tables cifar100-lt OUT...      the folders that `srepr reproduce --out` wrote
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS, processor
from srepr.reproduction.experiments import TABLES
from srepr.run.folder import provenance

IDENTITY = ("name", "epochs", "seed", "mixup", "temperature")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("out", type=Path, nargs="+")
    arguments = parser.parse_args()
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    pages = []
    for out in arguments.out:
        for table in TABLES:
            file = out / f"{table}-{arguments.source}.json"
            if not file.exists():
                continue
            found = json.loads(file.read_text())
            for row in found:
                rows.setdefault(tuple(row.get(key) for key in IDENTITY), row)
            lengths = ", ".join(f"{epochs} epochs" for epochs in sorted({row["epochs"] for row in found}))
            pages.append(re.sub(r"^# (.*)", rf"## \1, {lengths}", file.with_suffix(".md").read_text(), count=1))
    if not rows:
        raise SystemExit(f"no table of {arguments.source} is in {', '.join(map(str, arguments.out))}.")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{arguments.source}.json").write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    versions = ", ".join(f"{package} {version}" for package, version in provenance()["versions"].items())
    head = f"""# {arguments.source}

Made by `srepr reproduce TABLE {arguments.source}`; {arguments.source}.json has every row, with the command that
makes it by hand. Accuracy in per cent. Machine: {processor()}; {versions}.
"""
    (RESULTS / f"{arguments.source}.md").write_text("\n".join([head, *pages]))
    print(f"{len(rows)} rows, {len(pages)} tables")


if __name__ == "__main__":
    main()
