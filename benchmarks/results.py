"""The results: rounds of samples, their medians and spread, to and from JSON."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Sample = dict[str, float]

HERE = Path(__file__).parent / "results"


@dataclass(frozen=True, order=True)
class Case:
    """One cell of the matrix, the same for all systems."""

    scenario: str
    nodes: int
    tasks: int
    loop: str = "asyncio"

    def __str__(self) -> str:
        return f"{self.scenario}, N={self.nodes}, {self.tasks:,}, {self.loop}"


@dataclass(frozen=True)
class Spread:
    """A median and the spread of the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def over(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass
class Results:
    """All samples of one run, in the order of the rounds, and what could not be measured."""

    samples: dict[tuple[Case, str], list[Sample]] = field(default_factory=lambda: defaultdict(list))
    problems: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    bars: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: Case, system: str, sample: Sample) -> None:
        self.samples[case, system].append(sample)

    def spread(self, case: Case, system: str, metric: str) -> Spread | None:
        """Return median and spread over the rounds; None if the system gave no such figure."""
        rounds = self.samples.get((case, system), [])
        values = [s[metric] for s in rounds if metric in s and not math.isnan(s[metric])]
        return Spread.over(values) if values else None

    def median(self, case: Case, system: str, metric: str) -> float:
        """Return the median over the rounds; nan if there is none."""
        spread = self.spread(case, system, metric)
        return spread.median if spread else math.nan

    def cases(self) -> list[Case]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(case for case, _ in self.samples))

    def systems(self, case: Case) -> list[str]:
        return [system for measured, system in self.samples if measured == case]

    def metrics(self, case: Case, system: str) -> Iterator[tuple[str, Spread]]:
        names = dict.fromkeys(name for sample in self.samples[case, system] for name in sample)
        for name in names:
            if spread := self.spread(case, system, name):
                yield name, spread

    def to_json(self) -> str:
        rows = [
            {"case": asdict(case), "system": system, "rounds": rounds}
            for (case, system), rounds in self.samples.items()
        ]
        whole = {
            "machine": self.machine,
            "settings": self.settings,
            "versions": self.versions,
            "problems": self.problems,
            "bars": self.bars,
            "rows": rows,
        }
        return json.dumps(_rounded(whole), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        whole = json.loads(text)
        results = cls(
            problems=whole["problems"],
            versions=whole["versions"],
            settings=whole["settings"],
            machine=whole["machine"],
            bars=whole["bars"],
        )
        for row in whole["rows"]:
            results.samples[Case(**row["case"]), row["system"]] = [
                {name: math.nan if value is None else value for name, value in sample.items()}
                for sample in row["rounds"]
            ]
        return results


def _rounded(value: Any) -> Any:
    """Six significant digits, and null for what JSON has no number for."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return value


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def latest(folder: Path = HERE) -> Path:
    """The newest result by name, which begins with its date."""
    found = sorted(folder.glob("2*.json"))
    if not found:
        raise FileNotFoundError(f"no results in {folder}: measure first")
    return found[-1]
