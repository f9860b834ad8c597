"""Makes the catalogue from published figures: `python -m stretto.catalogue.build --data DIR [--out FILE]`.

Prints how far the fitted step times are from those measured, for each model and GPU type.

GPU types on which a model was not measured get parameters by way of a yardstick that was measured on most
(ResNet-50). Compute takes 1/r of the time, with r the relative speed of the two types on the yardstick. The
time to synchronise is scaled by what the yardstick takes on the two types, within a node and across nodes.
Where not even the yardstick was measured, the speed follows from the measured type with the closest FP32
peak, by the ratio of the peaks. The synchronisation is that of `network_like`.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from stretto.catalogue.figures import (
    Curves,
    Points,
    elasticflow_points,
    gavel_points,
    pollux_curves,
    pollux_points,
)
from stretto.catalogue.recipes import GPUS, RECIPES, YARDSTICK, YARDSTICK_SAMPLES, Recipe
from stretto.estimate.throughput import ThroughputModel, grad_s, step_s, sync_s
from stretto.model.arrays import FloatArray, floats

GAMMA_PENALTY = 1e-3  # Pollux's published code
RATIO_PENALTY = 1e-2  # Pollux's published code
MULTI_NODE_MARGIN = 1.1  # Pollux's published code: across nodes takes at least so much longer than within one
LOWEST_S = 1e-8  # Pollux's published code: the least of any parameter
OUTLIER = 0.1  # chosen: errors beyond 10 % count linearly, so that odd measurements do not bend the rest
FIRST_GAMMAS = (1.1, 2.0, 4.0)  # chosen: starts of the search; the best of them is kept


@dataclass(frozen=True)
class StepFit:
    """Seven parameters, and how far the step times that they give are from those measured."""

    params: FloatArray  # (7,) in the order of `ThroughputModel`
    points: int
    mean_error: float  # mean of |predicted / measured - 1|
    worst_error: float
    across_nodes: bool  # whether steps on several nodes were measured


def fit_steps(points: Points) -> StepFit:
    """The model of `stretto.estimate.throughput` with least squares of log T_grad and log T_step.

    As in Pollux (OSDI 2021), with two changes. On one GPU a step is taken for T_grad where only steps were
    measured, and outliers count linearly. Without a measurement on several nodes, the parameters for them are
    their least (1.1 times those within a node).
    """
    within = (points.nodes == 1) & (points.gpus > 1)
    across = points.nodes > 1
    grad = np.where(np.isnan(points.grad_s) & (points.gpus == 1), points.step_s, points.grad_s)
    has_grad = ~np.isnan(grad)
    weight = 1 / np.sqrt(len(points))
    grad_weight = 1 / np.sqrt(max(int(has_grad.sum()), 1))

    def params_of(theta: FloatArray) -> FloatArray:
        alpha_c, beta_c, alpha_n, alpha_l = np.exp(theta[[0, 1, 2, 4]])
        if not across.any():
            alpha_n = MULTI_NODE_MARGIN * alpha_l
        ratio_n = theta[3] if across.any() else theta[5]
        return floats([alpha_c, beta_c, alpha_n, ratio_n * alpha_n, alpha_l, theta[5] * alpha_l, theta[6]])

    def misses(theta: FloatArray) -> FloatArray:
        params = params_of(theta)
        step = step_s(params, points.nodes, points.gpus, points.local_batch)
        return np.concatenate([
            weight * _softened(np.log(step / points.step_s)),
            grad_weight * _softened(np.log(grad_s(params, points.local_batch) / grad))[has_grad],
            [np.sqrt(GAMMA_PENALTY) * (theta[6] - 1)],
            np.sqrt(RATIO_PENALTY) * theta[[3, 5]] * [bool(across.any()), bool(within.any())],
        ])  # fmt: skip

    per_sample_s = float(np.min(points.step_s / points.local_batch))
    usual_s = float(np.median(points.step_s))
    low = [np.log(LOWEST_S)] * 3 + [0.0, np.log(LOWEST_S), 0.0, 1.0]
    high = [np.log(1e3)] * 3 + [10.0, np.log(1e3), 10.0, 10.0]
    fits = [
        least_squares(
            misses,
            [
                np.log(usual_s / 2),
                np.log(per_sample_s),
                np.log(usual_s / 4),
                0.01,
                np.log(usual_s / 8),
                0.01,
                gamma,
            ],
            bounds=(low, high),
            x_scale=[1, 1, 1, 0.1, 1, 0.1, 1],
        )
        for gamma in FIRST_GAMMAS
    ]
    params = params_of(min(fits, key=lambda result: float(result.cost)).x)
    error = np.abs(step_s(params, points.nodes, points.gpus, points.local_batch) / points.step_s - 1)
    return StepFit(params, len(points), float(error.mean()), float(error.max()), bool(across.any()))


@dataclass(frozen=True)
class NoiseFit:
    """The gradient noise scale at the start and the end of training, in samples, and how well it explains."""

    start: float
    end: float
    mean_error: float  # mean of |predicted / measured - 1| over batch sizes, of the steps of a whole training


def fit_noise(curves: Curves) -> NoiseFit:
    """The noise scale, growing geometrically with progress, that best explains the steps of each epoch.

    gain = (φ/M0 + 1) / (φ/M + 1)        Pollux (OSDI 2021), section 3.1

    is progress per step at batch size M in steps at M0. φ = start^(1-f) end^f at the fraction f of progress.
    """
    first = curves.batches[0]
    batch = floats(curves.batches[1:])[:, None]
    before = np.zeros((len(curves.batches), 1))
    progressed = np.diff(curves.progress, axis=1, prepend=before)[1:]
    stepped = np.diff(curves.steps, axis=1, prepend=before)[1:]
    fraction = ((curves.progress[1:] - progressed / 2) / curves.progress[1:, -1:]).clip(0, 1)
    measured = np.log(progressed / stepped)

    def gains(theta: FloatArray) -> FloatArray:
        noise = np.exp(theta[0] * (1 - fraction) + theta[1] * fraction)
        return np.asarray((noise / first + 1) / (noise / batch + 1))

    def misses(theta: FloatArray) -> FloatArray:
        return np.asarray((np.log(gains(theta)) - measured).ravel())

    largest = 100 * curves.batches[-1]  # beyond, every batch size here is as good as perfect
    solution = least_squares(
        misses,
        np.log([5.0 * first, 50.0 * first]),
        bounds=(np.log(first / 10), np.log(largest)),
    )
    predicted = (progressed / gains(solution.x)).sum(axis=1)
    error = float(np.abs(predicted / curves.steps[1:, -1] - 1).mean())
    start, end = np.exp(solution.x)
    return NoiseFit(float(start), float(end), error)


def _softened(error: FloatArray) -> FloatArray:
    """Errors whose square grows linearly beyond `OUTLIER`."""
    size = np.abs(error) / OUTLIER
    return np.asarray(np.sign(error) * OUTLIER * np.sqrt(2 * (np.sqrt(1 + size**2) - 1)))


# ── from figures to the catalogue ───────────────────────────────────────────────────────────────────────────


WITHIN = (1, 4)  # chosen: nodes and GPUs at which synchronisation is compared
ACROSS = (4, 16)  # chosen: as above, on several nodes


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one GPU type computes and synchronises the yardstick."""

    samples_per_s: float  # one GPU
    within_s: float
    across_s: float
    source: str


def paces_of(yardstick: Mapping[str, FloatArray]) -> Mapping[str, Pace]:
    """The pace of every GPU type; `yardstick` has the (7,) parameters of those it was measured on."""
    measured = {
        name: Pace(
            samples_per_s=YARDSTICK_SAMPLES / float(grad_s(params, YARDSTICK_SAMPLES)),
            within_s=float(sync_s(params, *WITHIN)),
            across_s=float(sync_s(params, *ACROSS)),
            source="measured",
        )
        for name, params in yardstick.items()
    }
    return {name: measured.get(name) or _from_data_sheet(name, measured) for name in GPUS}


def _from_data_sheet(name: str, measured: Mapping[str, Pace]) -> Pace:
    peak = GPUS[name].fp32_tflops
    closest = min(measured, key=lambda other: abs(GPUS[other].fp32_tflops - peak))
    network = measured[GPUS[name].network_like]
    return Pace(
        samples_per_s=measured[closest].samples_per_s * peak / GPUS[closest].fp32_tflops,
        within_s=network.within_s,
        across_s=network.across_s,
        source=f"FP32 peak, {peak:g} against {GPUS[closest].fp32_tflops:g} TFLOPS of {closest}",
    )


def moved(params: FloatArray, there: Pace, here: Pace) -> FloatArray:
    """(7,) parameters on the type whose pace is `here`, from those on the type whose pace is `there`."""
    compute = there.samples_per_s / here.samples_per_s
    across, within = here.across_s / there.across_s, here.within_s / there.within_s
    return params * floats([compute, compute, across, across, within, within, 1.0])


# ── parameters of every model of the catalogue ────────────────────────────────────────────────────


CATALOGUE = Path(__file__).with_name("models.yaml")
DIGITS = 5  # significant; fits do not deserve more

HEADER = """\
# How fast common models train on which GPU, and how far a larger batch helps.
#
# Made by `python -m stretto.catalogue.build` from figures published by others, which it names; do not edit.
# Sources: profiles and training curves of Pollux (petuum/adaptdl, Apache-2.0), throughput tables of
# ElasticFlow (pkusys/ElasticFlow, Apache-2.0) and of Gavel and Shockwave (uw-mad-dash/shockwave, MIT).
#
# alpha_c … gamma: seconds, as in stretto.estimate.throughput. Errors: of the fitted against the measured time
# of a step, mean and worst. derived: this model was not measured on this GPU; moved from another one by the
# pace of ResNet-50 on both (catalogue/build.py). across_nodes false: nothing was measured on several nodes.
# noise: gradient noise scale in samples at the start and the end of training (catalogue/build.py).
"""


@dataclass(frozen=True)
class Measured:
    """What one source says about a model on one GPU type."""

    source: str
    points: Points
    fit: StepFit


def measured(data: Path, recipe: Recipe) -> Mapping[str, Measured]:
    """Everything that is published about a model, fitted, by GPU type."""
    published: dict[str, tuple[str, Points]] = {}
    if recipe.pollux:
        published["t4"] = "Pollux", pollux_points(data, recipe.pollux)
    if recipe.elasticflow:
        published["a100"] = "ElasticFlow", elasticflow_points(data, recipe.elasticflow)
    if recipe.gavel:
        for gpu_type in ("v100", "p100", "k80"):
            published[gpu_type] = "Gavel", gavel_points(data, recipe.gavel, gpu_type)
    return {
        gpu_type: Measured(source, points, fit_steps(points))
        for gpu_type, (source, points) in published.items()
    }


def build(data: Path) -> dict[str, Any]:
    """The content of the catalogue file, from the figures in the data folder."""
    all_measured = {name: measured(data, recipe) for name, recipe in RECIPES.items()}
    paces = paces_of(
        {gpu_type: measurement.fit.params for gpu_type, measurement in all_measured[YARDSTICK].items()}
    )
    fastest = max(pace.samples_per_s for pace in paces.values())
    models: dict[str, Any] = {}
    for name, recipe in RECIPES.items():
        models[name] = _model(data, recipe, all_measured[name], paces, models)
    return {
        "gpu_types": {
            name: {
                "memory_gb": GPUS[name].memory_gb,
                "speed": _rounded(pace.samples_per_s / fastest),
                "source": f"{RECIPES[YARDSTICK].about}, {pace.source}",
            }
            for name, pace in paces.items()
        },
        "models": models,
    }


def _model(
    data: Path,
    recipe: Recipe,
    measured_on: Mapping[str, Measured],
    paces: Mapping[str, Pace],
    models: Mapping[str, Any],
) -> dict[str, Any]:
    like = models[recipe.like] if recipe.like else None
    gpu_types = {name: _on(name, measured_on, paces) for name in GPUS}
    entry: dict[str, Any] = {"about": recipe.about, "aliases": list(recipe.aliases), "size_class": ""}
    if like is None:
        curves = pollux_curves(data, recipe.pollux)
        noise = fit_noise(curves)
        entry["init_batch"], entry["max_batch"] = curves.batches[0], curves.batches[-1]
        entry["noise"] = {
            "start": _rounded(noise.start),
            "end": _rounded(noise.end),
            "mean_error": round(noise.mean_error, 4),
            "source": "training curves of Pollux",
        }
        entry["steps"] = ceil(curves.progress[:, -1].min())
    else:
        grows = like["max_batch"] // like["init_batch"]
        entry["init_batch"], entry["max_batch"] = recipe.init_batch, recipe.init_batch * grows
        entry["noise"] = {
            "start": like["noise"]["start"],
            "end": like["noise"]["end"],
            "mean_error": None,
            "source": f"not measured; that of {recipe.like}",
        }
        entry["steps"] = ceil(recipe.steps)
    entry["steps_source"] = recipe.steps_source
    entry["restart_s"] = like["restart_s"] if like else recipe.restart_s
    entry["gpu_types"] = gpu_types
    entry["size_class"] = recipe.size_class or _size_class(entry)
    return entry


def _on(name: str, measured_on: Mapping[str, Measured], paces: Mapping[str, Pace]) -> dict[str, Any]:
    if name in measured_on:
        measurement = measured_on[name]
        return {
            **_parameters(measurement.fit.params),
            "min_local": int(measurement.points.local_batch.min()),
            "max_local": int(measurement.points.local_batch.max()),
            "derived": False,
            "source": measurement.source,
            "points": measurement.fit.points,
            "mean_error": round(measurement.fit.mean_error, 4),
            "worst_error": round(measurement.fit.worst_error, 4),
            "across_nodes": measurement.fit.across_nodes,
        }
    # From where most was measured, then from the closest pace.
    pace = paces[name].samples_per_s
    origin = min(
        measured_on,
        key=lambda gpu_type: (-measured_on[gpu_type].fit.points, abs(paces[gpu_type].samples_per_s - pace)),
    )
    measurement = measured_on[origin]
    memory = GPUS[name].memory_gb / GPUS[origin].memory_gb
    max_local = max(int(measurement.points.local_batch.max() * memory), 1)
    return {
        **_parameters(moved(measurement.fit.params, paces[origin], paces[name])),
        "min_local": min(int(measurement.points.local_batch.min()), max_local),
        "max_local": max_local,
        "derived": True,
        "source": f"{measurement.source} on {origin}, "
        f"speed x {_rounded(pace / paces[origin].samples_per_s):g}",
        "across_nodes": measurement.fit.across_nodes,
    }


def _size_class(entry: Mapping[str, Any]) -> str:
    """By GPU-hours on one T4 at the initial batch: S below 1, M to 10, L to 100, XL (Sia, section 4.1)."""
    on_t4 = entry["gpu_types"]["t4"]
    params = floats([on_t4[field] for field in ThroughputModel._fields])
    passes = ceil(entry["init_batch"] / on_t4["max_local"])
    step_s = passes * float(grad_s(params, entry["init_batch"] / passes))
    hours = entry["steps"] * step_s / 3600
    return next((name for name, most in (("S", 1), ("M", 10), ("L", 100)) if hours < most), "XL")


def _parameters(params: FloatArray) -> dict[str, float]:
    return {
        name: _rounded(value) for name, value in zip(ThroughputModel._fields, params.tolist(), strict=True)
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def as_text(content: Mapping[str, Any]) -> str:
    """The catalogue file: the header, and one line for each model and GPU type."""
    return HEADER + yaml.dump(
        dict(content),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
        default_flow_style=None,
    )


class _Dumper(yaml.SafeDumper):
    """Without anchors: everything is written out where it is used."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def report(content: Mapping[str, Any]) -> str:
    """The fit's errors, a line for each model and GPU type that was measured."""
    lines = [f"{'model':20} {'gpu':6} {'source':12} {'points':>6} {'mean':>7} {'worst':>7}"]
    for name, model in content["models"].items():
        for gpu_type, on in model["gpu_types"].items():
            if not on["derived"]:
                lines.append(
                    f"{name:20} {gpu_type:6} {on['source']:12} {on['points']:6} "
                    f"{on['mean_error']:7.1%} {on['worst_error']:7.1%}"
                )
    lines.append("")
    lines.append(f"{'model':20} {'class':5} {'steps':>9} {'noise start':>11} {'end':>11} {'mean error':>10}")
    for name, model in content["models"].items():
        noise = model["noise"]
        error = "" if noise["mean_error"] is None else f"{noise['mean_error']:.1%}"
        lines.append(
            f"{name:20} {model['size_class']:5} {model['steps']:9} "
            f"{noise['start']:11.0f} {noise['end']:11.0f} {error:>10}"
        )
    return "\n".join(lines)


def main() -> None:
    """Build, print the errors, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with sia/profiles and throughputs")
    parser.add_argument("--out", type=Path, default=CATALOGUE, help="where to write the catalogue")
    options = parser.parse_args()
    content = build(options.data)
    print(report(content))
    options.out.write_text(as_text(content), encoding="utf-8")


if __name__ == "__main__":
    main()
