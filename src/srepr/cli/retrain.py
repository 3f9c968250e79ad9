"""`srepr retrain`: stage 2."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from srepr.cli.output import show_choice, show_results
from srepr.config import Retrain, Stage1
from srepr.errors import InputError
from srepr.methods import METHODS, Method, Representation, Start, choices

if TYPE_CHECKING:
    from srepr.run.team import Team


@dataclass(frozen=True, kw_only=True)
class RetrainCommand:
    """Stage 2: re-train the classifier on frozen features; several methods share one feature cache.

    auto, the default, chooses method and penalty on the validation set.
    """

    EXAMPLE: ClassVar[str] = "srepr retrain runs/photos"

    run_folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run folder made by `srepr train`."""
    method: Annotated[tuple[str, ...], arg(help=f"One or several methods: auto, {', '.join(METHODS)}.")] = ("auto",)
    name: str | None = None
    """Name of the head; default: the method's name."""
    stage1: Stage1 = "swa"
    """Network: the averaged one, or the SGD baseline."""
    head: str | None = None
    """Head to train (linear, lws, lws-per-class, disalign, tau-norm or ncm); overrides the method's."""
    start: Start | None = None
    """Initial weights of the head; overrides the method's."""
    balance: str | None = None
    """Class balancing (cbs, grw, la or none); overrides the method's."""
    representation: Representation | None = None
    """Features that the head sees; overrides the method's."""
    distill: FlagCreatePairsOff[bool] = False
    """Distil, even if the method does not."""
    no_distill: FlagCreatePairsOff[bool] = False
    """Do not distil, even if the method does."""
    settings: Annotated[Retrain, arg(name="")] = field(default_factory=Retrain)
    data_dir: Path | None = None
    """Folder with the run's data, if they have moved."""
    devices: int = 1
    """Number of processes that make the features, with one device each; torchrun and SLURM are detected."""
    workers: int = 2
    """Processes that decode image files, for each device."""
    compile: bool = False
    """Compile the feature extractors, once for all draws."""
    overwrite: bool = False
    """Replace a head of the same name that has other settings."""
    json: bool = False
    """Print the metrics as JSON."""

    def run(self) -> None:
        """Re-train, then print the table."""
        from srepr.run.folder import read_settings
        from srepr.run.team import open_team

        if self.name and len(self.method) > 1:
            raise InputError("`name` is for one method. Leave it out, or give one `method`.")
        if self.distill and self.no_distill:
            raise InputError("`distill` and `no_distill` exclude each other. Leave one of them out.")
        read_settings(self.run_folder)  # no process is started for a folder that is not there
        with open_team(self.devices) as team:
            self.retrain(team)

    def retrain(self, team: Team) -> None:
        """Re-train in one of the processes of a team; only the first comes back, and prints."""
        from srepr.run.retrain import choices_made, retrain_run
        from srepr.run.schema import read_results

        prefix = "sgd-" if self.stage1 == "sgd" else ""
        results = retrain_run(
            self.run_folder,
            {self.name or prefix + method: self.behind(method) for method in self.method},
            self.settings,
            stage1=self.stage1,
            data_dir=self.data_dir,
            workers=self.workers,
            compiled=self.compile,
            overwrite=self.overwrite,
            quiet=self.json,
            team=team,
        )
        before: dict[str, Any] = {}
        if not self.json:
            before = {self.stage1: read_results(self.run_folder).get(self.stage1, {})}
            for name, choice in choices_made(self.run_folder, results).items():
                show_choice(name, choice)
        show_results({**before, **results}, str(self.run_folder), as_json=self.json)
        diverged = [metrics["diverged"] for metrics in results.values() if "diverged" in metrics]
        if diverged:
            raise InputError(" ".join(diverged))

    def behind(self, name: str) -> Method | Literal["auto"]:
        """The method of that name with the changes asked for."""
        changes = {change: getattr(self, change) for change in ("head", "start", "balance", "representation")}
        changes["distill"] = self.distill if self.distill or self.no_distill else None
        (*_, how) = choices(name, **changes).values()
        return "auto" if name == "auto" else how
