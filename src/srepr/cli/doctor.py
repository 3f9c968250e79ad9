"""`srepr doctor`: what this machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from srepr.cli.output import show_json


@dataclass(frozen=True, kw_only=True)
class DoctorCommand:
    """Show what this machine supports: versions, devices, compiler, bfloat16."""

    EXAMPLE: ClassVar[str] = "srepr doctor"

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Look and print."""
        from srepr.run.devices import diagnose

        findings = diagnose()
        if self.json:
            show_json(findings)
        else:
            for name, value in findings.items():
                print(f"{name:<12} {value}")
