"""The published records, read with nothing of ours but Python: the JSON files beside the pages, the stores of the experiments, the trials
of the diagnosis campaign; and the few statistics that the pages quote."""

import functools
import gzip
import itertools
import json
import lzma
import math
import sqlite3
import statistics

from program import ROOT

RESULTS = ROOT / "docs/results"
CLEAN = "val-core/arithmetic/acc/mean@1"
FAULTY = "faultline/val-faulty/arithmetic/acc/mean@1"


@functools.cache
def record(name):
    """A JSON file of docs/results."""
    return json.loads((RESULTS / name).read_text())


@functools.cache
def diagnoses(name="diagnosis.jsonl.gz"):
    """The trials of a campaign of diagnoses."""
    with gzip.open(RESULTS / name, "rt") as lines:
        return [json.loads(line) for line in lines]


def t_distribution(x, freedom):
    """P(T <= x), x >= 0, by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
    density = lambda t: scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)  # noqa: E731
    steps = 4000
    inner = sum((4 if i % 2 else 2) * density(x * i / steps) for i in range(1, steps))
    return 0.5 + x / steps / 3 * (density(0) + inner + density(x))


@functools.cache
def t_quantile(probability, freedom):
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_distribution(middle, freedom) < probability else (low, middle)
    return low


def interval(values, family=1):
    """95 % by Student's t. family: how many such intervals hold together (Bonferroni)."""
    half = t_quantile(1 - 0.025 / family, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def sign_flip(values):
    """Two-sided and exact: every choice of signs."""
    observed, sums = abs(sum(values)), []
    for signs in itertools.product((1, -1), repeat=len(values)):
        sums.append(abs(sum(sign * value for sign, value in zip(signs, values))))
    return sum(one >= observed * (1 - 1e-9) for one in sums) / len(sums)


def holm(p_values):
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


class Experiment:
    """The store of one experiment. Seeds are counted from 0, as in the store (seed 0 is 100 on the pages)."""

    def __init__(self, folder):
        self.folder = RESULTS / "aqn" / folder
        self.analysis = json.loads((self.folder / "analysis.json").read_text())
        self.plan = json.loads((self.folder / "experiment.json").read_text())["recipe"]
        store = sqlite3.connect(":memory:")
        store.deserialize(lzma.decompress((self.folder / "campaign.sqlite.xz").read_bytes()))
        self.rows = store.execute("SELECT cell, trial_index, status, started, outcome, body FROM trial LEFT JOIN evidence ON evidence.trial = trial.id").fetchall()
        self.outcomes, self.evidence = {}, {}
        for arm, seed, status, _, outcome, body in self.rows:
            if status == "pass":
                self.outcomes.setdefault(arm, {})[seed] = json.loads(outcome)
                self.evidence.setdefault(arm, {})[seed] = json.loads(body)

    def by_seed(self, arm, metric=FAULTY):
        return {seed: one["results"][metric] for seed, one in sorted(self.outcomes[arm].items()) if metric in one["results"]}

    def mean(self, arm, metric=FAULTY):
        """Points."""
        return 100 * statistics.mean(self.by_seed(arm, metric).values())

    def start(self, arm):
        return {seed: one["curves"]["start"] for seed, one in sorted(self.outcomes[arm].items())}

    def paired(self, arm, against, metric=FAULTY, seeds=None):
        """Differences in points, seed by seed."""
        one, other = self.by_seed(arm, metric), self.by_seed(against, metric)
        return [100 * (one[seed] - other[seed]) for seed in sorted(one.keys() & other.keys()) if seeds is None or seed in seeds]

    def contrast(self, arm, against, metric=FAULTY, seeds=None, family=1):
        """-> difference, low, high in points."""
        values = self.paired(arm, against, metric, seeds)
        return (statistics.mean(values), *interval(values, family))


@functools.cache
def experiment(name):
    return Experiment(f"{name}-default")
