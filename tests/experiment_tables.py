"""Writes the tables of experiments into a page of docs/results, from their folders' analysis.json and nothing else:

    python tests/experiment_tables.py docs/results/aqn.md runs/noisy-ops-short-1f2e3d4c runs/deadzone-guided-short-…

What stands between the page's markers is replaced; the rest of the page is people's."""

import json
import pathlib
import re
import sys

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"


def points(value, digits=1):
    return f"{100 * value:.{digits}f}"


def mean(value, factor=100, digits=1):
    if not value:
        return ""
    text = f"{factor * value['mean']:.{digits}f}"
    return f"{text} ± {factor * value['sd']:.{digits}f}" if "sd" in value else text


def difference(comparison):
    if "interval" not in comparison:
        return ""
    low, high = comparison["interval"]
    return f"{points(comparison['difference'])} [{points(low)}, {points(high)}]"


def table(head, rows):
    return "\n".join(["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]])


def noise_time(row):
    """What making, setting and measuring the noise on the norms takes; nothing for an arm that spent no time on it."""
    spent = row.get("noise_seconds_a_step")
    return mean(spent, 1000, 2) if spent and spent["mean"] > 0 else ""


def arms_table(analysis):
    faulty = "/val-faulty/" in analysis["endpoint"]  # else the endpoint is the clean accuracy itself
    noisy = any(noise_time(row) for row in analysis["arms"])
    rows = [
        [
            row["arm"],
            str(row["endpoint"]["n"]) if row["endpoint"] else "0",
            *([mean(row["endpoint"])] if faulty else []),
            mean(row["clean"]),
            mean(row["gain"]),
            difference(row.get("against_control", {})),
            f"{row['died']}/{row['evidence_missing']}",
            mean(row["roughness"], 1, 3),
            mean(row["seconds_a_step"], 1, 2),
            *([noise_time(row)] if noisy else []),
        ]
        for row in analysis["arms"]
    ]
    head = ["arm", "seeds", *(["under the fault, %"] if faulty else []), "clean, %", "gain over the start", f"against {analysis['control']}, 95 %", "died/unproven", "roughness", "s a step", *(["noise, ms a step"] if noisy else [])]
    return table(head, rows)


def contrasts_table(analysis):
    rows = []
    for one in analysis["contrasts"]:
        tested = "p" in one
        arms = f"{one['arm']} − {one['against']}"
        rows.append(
            [
                arms if one["name"] == arms.replace("−", "-") else f"{one['name']} ({arms})",
                str(one["pairs"]),
                difference(one),
                f"{one['p']:.3g}" if tested else "",
                f"{one['p_holm']:.3g}" if tested else "",
                points(one["resolvable"]) if one.get("resolvable") is not None else "",
            ]
        )
    return table(["contrast", "pairs", "difference in points, 95 %", "p", "p (Holm)", "resolvable at Holm's first step, 80 % power"], rows)


def under_table(analysis):
    rows = [
        [label, row["arm"], mean(one["accuracy"]), mean(one["degradation"]), mean(one["recovery"]), difference(one.get("against_control", {}))]
        for row in analysis["arms"]
        for label, one in row.get("under", {}).items()
    ]
    return table(["final model under", "arm", "accuracy, %", "lost, points", "won back, %", f"against {analysis['control']}, 95 %"], rows) if rows else ""


def design_line(design):
    pilot = design.get("pilot")
    text = f"Design: {design['seeds']} seeds, {len(design['contrasts'])} contrasts."
    if pilot:
        text += f" Pilot: {pilot['pairs']} pairs of {pilot['arm']} and {pilot['against']}, SD of their differences {points(pilot['sd_of_differences'])} points."
    if "resolvable" in design:
        text += f" Planned to resolve {points(design['resolvable'])} points."
    if "pairs_for_three_points" in design:  # designs of older versions did not ask what Holm's first step takes
        text += f" By that SD three points need {design['pairs_for_three_points']} pairs; Holm's first step needs {design['fewest_pairs_for_holm']}."
    return text


def section(folder):
    analysis = json.loads((folder / "analysis.json").read_text())
    name = re.sub("-[0-9a-f]{8}$", "", folder.name)
    parts = [f"### {name}", analysis["question"][:1].upper() + analysis["question"][1:]]
    if "design" in analysis:
        parts.append(design_line(analysis["design"]))
    if calibration := analysis.get("calibration"):
        parts.append(f"Calibrated: {calibration['value']:.4g} leaves {points(calibration['share'])} % of the clean accuracy ({points(calibration['clean'])} %, {calibration['problems']} problems).")
    parts += [arms_table(analysis), contrasts_table(analysis), under_table(analysis)]
    if analysis.get("starts", {}).get("alarm"):
        parts.append(f"Alarm: what the seeds begin with has a trend (p = {analysis['starts']['p_of_a_trend']:.2g}): they do not look independent.")
    parts += [f"Remark: {remark}" for remark in analysis["remarks"]]
    for one in analysis["contrasts"]:
        if one["identical_seeds"] and one["against"] != analysis["control"]:
            parts.append(f"Alarm: {one['arm']} lost exactly what {one['against']} did in {one['identical_seeds']} seeds.")
    for row in analysis["arms"]:
        if earlier := row.get("earlier_attempts"):
            parts.append(f"{row['arm']}: {len(earlier)} trials are later attempts; without proof before: {earlier[0]}")
        if row.get("identical_seeds"):
            parts.append(f"Alarm: {row['arm']} lost exactly what {analysis['control']} did in {row['identical_seeds']} seeds.")
    return "\n\n".join(part for part in parts if part)


def main(page, *folders):
    page = pathlib.Path(page)
    text = page.read_text()
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    body = "\n\n".join(section(pathlib.Path(folder)) for folder in folders)
    page.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
