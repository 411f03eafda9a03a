"""servelab compare: is a technique better than others, on the same requests, beyond noise?

  servelab compare --techniques mine,slora,dlora --spec dlora/fig10
  servelab compare --techniques 'mine(window=8),mine,dlora' --model llama-2-7b \\
      --hardware a800-80g --workload dlora-maf2 --rate 12 --slo ttft=1,tpot=0.1
  servelab compare --techniques mine,dlora --spec S --find-rate 'attainment>=0.9' --slo ttft=1

With --spec: model, hardware, workload, sweep, limits, and seeds unless --seeds is given, are those
of the spec; its techniques are replaced, and --techniques may name them by their labels.
Parameters: name(parameter=value, ...), where route, route_with.X and engine.X are those keys of a
technique's entry, and anything else is below `with`. label=name(...) gives a name of its own.

Exit codes: 0; 1 when a technique failed or is INVALID somewhere (it is left out, with the reason);
2 for bad input; 75 and 128 + signal as of servelab run: the same command goes on.
"""
from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import verb
from analysis.compare.spec_file import (RATE, SpecFile, Technique, find_label, member,
                                        parse_techniques)
from analysis.errors import shown
from analysis.verb import FAILED, OK, VerbError

if TYPE_CHECKING:
    from analysis.compare.comparing import Comparison
    from analysis.compare.running import Runner
    from analysis.slo_limits import Limits

RUNS = "runs"  # the effective spec's name
DEFAULT_SEEDS = 5
WITHOUT_SPEC = {"requests": 1000, "adapters": 32, "rate": 8.0}  # of a --workload of lengths


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = verb.Parser(prog="servelab compare", description=__doc__, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--techniques", required=True, metavar="A,B,...")
    parser.add_argument("--baseline", metavar="LABEL",
                        help="what differences are taken to; default: the last technique")
    on = parser.add_argument_group("on what")
    on.add_argument("--spec", metavar="SPEC", help="a spec file, or an id such as dlora/fig10")
    on.add_argument("--model", help="in place of the spec's, or without one")
    on.add_argument("--hardware")
    on.add_argument("--workload", metavar="W",
                    help="a name in experiments/base/workload, or a set of lengths such as "
                         "sharegpt: 1000 requests at 8/s, by a Poisson process, to 32 equally "
                         "popular adapters")
    on.add_argument("--rate", type=float, help="requests/s")
    on.add_argument("--adapters", type=int, metavar="N")
    on.add_argument("--requests", type=int, metavar="N")
    on.add_argument("--seeds", type=int, metavar="N",
                    help="default: the spec's, else 5; intervals need two")
    on.add_argument("--set", action="append", default=[], metavar="PATH=VALUE",
                    help="any key of a spec, such as engine.max_batch=16, sweep.PATH=[1,2] or "
                         "sweep={}; repeatable")
    measure = parser.add_argument_group("what is measured")
    measure.add_argument("--slo", metavar="METRIC=SECONDS,...",
                         help="of goodput and attainment, over ttft, tpot, latency, "
                              "latency_per_token, queueing; default: latency_per_token=0.5")
    measure.add_argument("--find-rate", metavar="CONDITION,...",
                         help="the highest rate at which all conditions hold, in place of the "
                              "table: attainment>=0.9 (of --slo), ttft_p99<=1, "
                              "latency_per_token_mean<=0.5, ...")
    measure.add_argument("--resolution", type=float, default=0.02, help="of --find-rate; 0.02")
    run = parser.add_argument_group("running")
    run.add_argument("--out", type=Path, metavar="DIR",
                     help="default: results/compare/<spec or workload>")
    run.add_argument("--experiments", default="experiments", metavar="DIR")
    run.add_argument("--data", metavar="DIR", help="as of servelab run")
    run.add_argument("-j", "--jobs", type=int, metavar="N", help="points at once")
    run.add_argument("--time-limit", type=float, metavar="S", help="as of servelab run")
    run.add_argument("-q", "--quiet", action="store_true", help="print the results only")
    return parser.parse_args(arguments)


def find_spec(name: str, experiments: str) -> Path:
    """As servelab finds it. Raises VerbError with the nearest."""
    from analysis.compare import running
    for path in (Path(name), Path(experiments) / f"{name}.yaml"):
        if path.is_file():
            return path
    outcome = running.servelab(["check", name, "--experiments", experiments])
    raise VerbError((outcome.errors or [f"{name}: no such spec"])[0])


def _start(options: argparse.Namespace) -> SpecFile:
    """The spec to start from, before options change it."""
    if options.spec:
        from analysis.compare import running
        where = ["--experiments", options.experiments]
        where += ["--data", options.data] if options.data is not None else []
        spec = SpecFile.read(find_spec(options.spec, options.experiments),
                             lambda path: running.whole_spec(path, where))
        spec.drop("expect", "quick", "figure")
        return spec
    absent = [name for name in ("model", "hardware", "workload") if not getattr(options, name)]
    if absent:
        raise VerbError(f"needs --spec, or --model, --hardware and --workload; --{absent[0]} is "
                        "missing (servelab compare --help)")
    return SpecFile.empty()


def _put_workload(spec: SpecFile, options: argparse.Namespace) -> None:
    name, origin = options.workload, f"--workload {options.workload}"
    is_file = any(path.is_file() for path in (
        Path(name), Path(options.experiments) / "base" / "workload" / f"{name}.yaml"))
    if is_file:
        spec.put("workload", name, origin)
        return
    spec.put("workload", "{arrivals: {process: poisson}}", origin)
    spec.put("workload.lengths.source", name, origin)
    spec.put(RATE, str(WITHOUT_SPEC["rate"]), origin)
    spec.put("workload.requests", str(WITHOUT_SPEC["requests"]), origin)
    spec.put("workload.adapters.count", str(WITHOUT_SPEC["adapters"]), origin)


def _set(spec: SpecFile, text: str) -> None:
    path, equals, value = text.partition("=")
    if not equals or path.split(".")[0] in ("techniques", "seeds"):
        raise VerbError(f"--set {text}: expected path=value, such as engine.max_batch=16; "
                        "techniques and seeds have options of their own")
    spec.put(path.strip(), value, f"--set {text}")


def effective_spec(options: argparse.Namespace, techniques: list[Technique]) -> SpecFile:
    """What is run. Raises VerbError."""
    spec = _start(options)
    for text in options.set:  # first, so that other options may set what is swept no longer
        if text.split("=")[0].strip().split(".")[0] == "sweep":
            _set(spec, text)
    for key in ("model", "hardware"):
        if getattr(options, key):
            spec.put(key, getattr(options, key), f"--{key} {getattr(options, key)}")
    if options.workload:
        _put_workload(spec, options)
    for key, path in (("rate", RATE), ("adapters", "workload.adapters.count"),
                      ("requests", "workload.requests")):
        value = getattr(options, key)
        if value is not None and not (key == "rate" and options.find_rate):
            spec.put(path, f"{value:.10g}" if key == "rate" else str(value), f"--{key} {value}")
    for text in options.set:
        if text.split("=")[0].strip().split(".")[0] != "sweep":
            _set(spec, text)
    if options.seeds is not None:
        if options.seeds < 1:
            raise VerbError(f"--seeds {options.seeds}: expected at least one")
        spec.put("seeds", str(options.seeds), f"--seeds {options.seeds}")
    elif spec.value("seeds") is None:
        spec.put("seeds", str(DEFAULT_SEEDS), "--seeds")
    spec.use_techniques(techniques)
    labels = ", ".join(one.label for one in techniques)
    title = spec.value("title")
    on = title.value if title is not None else options.workload or options.spec
    spec.put("title", '"' + f"{labels}: {on}".replace('"', "'") + '"', "the title")
    return spec


def out_folder(options: argparse.Namespace) -> Path:
    if options.out is not None:
        return options.out
    name = options.workload or "spec"
    if options.spec:
        path = find_spec(options.spec, options.experiments).resolve()
        root = Path(options.experiments).resolve()
        name = (path.relative_to(root) if path.is_relative_to(root) else Path(path.name))
        name = str(name.with_suffix(""))
    return Path("results/compare") / str(name).replace("../", "")


def run_options(options: argparse.Namespace) -> list[str]:
    chosen = ["--experiments", options.experiments]
    for flag, value in (("--data", options.data), ("--jobs", options.jobs)):
        chosen += [flag, str(value)] if value is not None else []
    return chosen + ["--quiet"] * options.quiet


def _seeds_of(spec: SpecFile) -> list[int]:
    node = spec.value("seeds")
    try:
        if isinstance(node.value, str):  # type: ignore[union-attr]
            return list(range(int(node.value)))  # type: ignore[union-attr]
        return [int(item.value) for item in node.value]  # type: ignore[union-attr]
    except (AttributeError, TypeError, ValueError):
        raise VerbError(f"{spec.source or '--seeds'}: 'seeds' must be a number or a list of whole "
                        "numbers") from None


def _start_rate(spec: SpecFile, options: argparse.Namespace) -> float:
    node = spec.value(RATE)
    try:
        rate = options.rate if options.rate is not None else float(getattr(node, "value", 1.0))
    except (TypeError, ValueError):
        rate = math.nan
    if rate == 0:  # the spec language's "unset"
        rate = 1.0
    if not (rate > 0 and math.isfinite(rate)):
        raise VerbError(f"--find-rate: cannot start from a rate of "
                        f"{getattr(node, 'value', rate)}; give --rate")
    return rate


def main(arguments: list[str] | None = None) -> int:
    return verb.run(arguments, parse, command)


def command(options: argparse.Namespace) -> int:
    from analysis import slo_limits
    from analysis.compare import output, running
    techniques = parse_techniques(options.techniques)
    labels = [one.label for one in techniques]
    baseline = find_label(options.baseline or labels[-1], labels, "--baseline")
    try:
        limits = slo_limits.parse(options.slo) if options.slo else slo_limits.DEFAULT
    except ValueError as error:
        raise VerbError(f"--slo: {error}") from None
    if options.time_limit is not None and not options.time_limit > 0:
        raise VerbError(f"--time-limit {options.time_limit:g}: expected seconds, above 0")
    spec = effective_spec(options, techniques)
    folder = out_folder(options)
    spec.point_files_at(folder)
    runner = running.Runner(folder, run_options(options), heading(options), options.time_limit)
    try:
        if options.find_rate:
            comparison = _find_rate(options, spec, runner, labels, baseline, limits)
        else:
            comparison = _compare(spec, runner, labels, baseline, limits)
    except running.Stopped as error:
        return verb.tell(VerbError(str(error)), error.code)
    name = "rates" if options.find_rate else output.NAME
    written = output.write(comparison, folder, name)
    print(output.table(comparison), end="")
    if not options.quiet:
        print("\n" + "\n".join(f"  {shown(path)}" for path in written))
    return FAILED if comparison.excluded else OK


def heading(options: argparse.Namespace) -> str:
    """On top of the effective spec: which spec it was made from, for which techniques."""
    on = f" --spec {shlex.quote(options.spec)}" if options.spec else ""
    return f"servelab compare --techniques {shlex.quote(options.techniques)}{on}"


def _compare(spec: SpecFile, runner: Runner, labels: list[str], baseline: str,
             limits: Limits) -> Comparison:
    from analysis.compare import comparing, sentences
    from analysis.results import Results
    excluded = runner.run({RUNS: spec}, labels)
    results = Results.load(RUNS, runner.folder)
    comparison = comparing.compare(results, baseline, limits, excluded)
    comparison.says = sentences.sentences(comparison)
    return comparison


def _find_rate(options: argparse.Namespace, spec: SpecFile, runner: Runner, labels: list[str],
               baseline: str, limits: Limits) -> Comparison:
    from analysis.compare import rates
    from analysis.compare.comparing import Comparison
    conditions = rates.parse_conditions(options.find_rate, limits)
    if not 0.001 <= options.resolution <= 0.5:
        raise VerbError(f"--resolution {options.resolution:g}: expected 0.001 to 0.5")
    others = [path for path in spec.swept() if path != RATE]
    if others:
        raise VerbError(f"--find-rate: the spec sweeps {', '.join(others)}; choose one position "
                        f"with --set 'sweep={{}}' --set {others[0]}=...")
    seeds, start = _seeds_of(spec), _start_rate(spec, options)
    spec.drop("sweep")
    spec.put("record.series", "false", "--find-rate")
    grid = rates.Grid(options.resolution)

    def progress(text: str) -> None:
        if not options.quiet:
            print(f"--find-rate: {text}", file=sys.stderr)

    searches, excluded = rates.find(spec, runner, labels, seeds, start, grid, conditions, progress)
    facts = [(key, getattr(member(spec.root, key), "value", "")) for key in ("model", "hardware")]
    facts.append(("condition", " and ".join(one.text for one in conditions)))
    facts.append(("resolution", f"{100 * grid.resolution:g} %"))
    title = f"{spec.value('title').value}: highest rate"  # type: ignore[union-attr]
    comparison = rates.compare(searches, excluded, labels, baseline, grid,
                               Comparison(title, labels, baseline, facts, limits, len(seeds), [()]))
    if searches and rates.has_fixed_requests(folder=runner.folder, seed=seeds[0]):
        comparison.says.append(
            "The number of requests is fixed, so that a higher rate is a shorter burst; "
            "workload.requests=0 with workload.requests_per_rate keeps the length.")
    return comparison
