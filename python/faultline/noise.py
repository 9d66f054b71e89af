"""What a process says about the section aqn (`notes.aqn`), and why it may not be enough. The section is a promise about what
generates: its norms have been given noise, carry it, and did so at a strength above 0 that followed the schedule."""

from __future__ import annotations

from faultline.complaints import complaint

NO_NOISE = {"asked": 0, "norms": 0, "applications": 0}  # of a process whose recipe asks for noise on norms
_STRENGTH_BAND = (0.5, 2.0)  # measured over expected noise on the norms; few elements each


def complaints(notes: dict, work: dict[str, int], *, at_end: bool = True, alone: bool = False) -> list[dict]:
    """at_end: False while the run goes on, when a schedule may still be silent. alone: the recipe asks for nothing else, so
    a process that is held to it must have noise even where it has not generated."""
    aqn = notes.get("aqn")
    if aqn is None:
        return []
    if not aqn["applications"]:
        if not work.get("rollout") and not alone:
            return []
        return [complaint("noise_missing", f"this process has {'generated' if work.get('rollout') else 'a recipe with aqn alone'}, and the noise that the recipe's section aqn asks for was put on no norm here; among other people's engines vLLM's sampler gets it, and the model that a trainer samples with")]
    if not work.get("rollout"):
        return []
    return [one for engine in (aqn, *aqn.get("others", ())) for one in _of_engine(engine, work, at_end)]


def _of_engine(aqn: dict, work: dict[str, int], at_end: bool) -> list[dict]:
    found = []
    if overwritten := aqn.get("overwritten"):
        found.append(complaint("noise_overwritten", f"{len(overwritten)} norm weights ({overwritten[0]}{', …' if overwritten[1:] else ''}) lost their noise: something wrote them past load_weights", place=overwritten[0]))
    elif aqn["norms"] != aqn["asked"]:
        found.append(complaint("noise_overwritten", f"noise was put on {aqn['asked']} norm weights and {aqn['norms']} carry it"))
    found += strength_complaints(aqn)
    found += left_complaints(aqn, work)
    if at_end and aqn.get("sigmas") and aqn["sigmas"]["highest"] == 0:
        found.append(complaint("noise_silent", f"aqn: sigma was 0 in everything that was generated here (step {aqn['step']}, told by {aqn['step_from']}): no norm carried noise"))
    if at_end and (why := aqn.get("still")):
        found.append(complaint("still", f"the schedule of aqn never moved: {why}"))
    return found


def left_complaints(aqn: dict, work: dict[str, int]) -> list[dict]:
    """Of a model that also learns (trainer_norms.py): its other forwards were looked at, and met clean norms."""
    if (outside := aqn.get("outside")) is None:
        return []
    if outside["noisy"]:
        return [complaint("noise_strength", f"aqn: the sampler's noise was still on the norms in {outside['noisy']} of {outside['forwards']} forwards of the update or of evaluations")]
    if work.get("actor_forward") and not outside["forwards"]:
        return [complaint("noise_strength", "aqn: this process has learnt, and no forward of an update was seen to read clean norms")]
    return []


def metrics(notes: dict) -> dict[str, float]:
    """The noise as numbers of a training step; nothing before it was put on."""
    aqn = notes.get("aqn", {})
    return {f"faultline/aqn/{name}": float(aqn[name]) for name in ("sigma", "realised", "norms", "applications")} if aqn.get("applications") else {}


def strength_complaints(aqn: dict) -> list[dict]:
    lowest, highest = aqn.get("shares") or (1.0, 1.0)
    if _STRENGTH_BAND[0] < lowest <= highest < _STRENGTH_BAND[1]:
        return []
    return [complaint("noise_strength", f"aqn: the weights carried {lowest:.3g} to {highest:.3g} of the noise that the schedule asks for")]


def of_all(entries: list[dict]) -> dict | None:
    """The counts over all processes, as those of a rule; nothing where no recipe has the section."""
    noises = [entry["notes"]["aqn"] for entry in entries if "aqn" in entry["notes"]]
    if not noises:
        return None
    engines = [engine for noise in noises for engine in (noise, *noise.get("others", ()))]
    return {**{column: sum(engine[column] for engine in engines) for column in NO_NOISE}, "processes": sum(noise["applications"] > 0 for noise in noises)}
