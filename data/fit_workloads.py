#!/usr/bin/env python3
"""Fits the embedded workload statistics and writes data/embedded_stats.cc.

    data/fit_workloads.py [--data DIR] [--out FILE] [--report]

Reads the traces in DIR (default: $SERVELAB_DATA), standard library only, and is reproducible: the
same traces give the same file. `--report` prints how close the embedded statistics come to the
traces (the table in data/README.md) instead of writing anything.
"""
import argparse
import csv
import gzip
import hashlib
import math
import os
import random
import statistics
import sys

QUANTILES = [0, .005, .01, .02, .05, .1, .15, .2, .3, .4, .5, .6, .7, .8, .85, .9, .95, .98, .99,
             .995, 1]
EXTREME = 3.5  # the normal score that stands for the minimum and the maximum
NORMAL = statistics.NormalDist()
SCORES = [-EXTREME if q == 0 else EXTREME if q == 1 else NORMAL.inv_cdf(q) for q in QUANTILES]

LENGTH_SETS = [  # name, file, prompt column, output column
    ("alpaca", "alpaca/alpaca_5000_llama2tok.csv.gz", "input_tokens", "output_tokens"),
    ("alpaca-template", "alpaca/alpaca_5000_llama2tok.csv.gz", "input_tokens_with_template",
     "output_tokens"),
    ("sharegpt-8k", "length_sets/sharegpt_8k_llama2tok.csv.gz", "input_tokens", "output_tokens"),
    ("bwb", "length_sets/bwb_llama2tok.csv.gz", "input_tokens", "output_tokens"),
    ("arxiv", "length_sets/arxiv_summarization_llama2tok.csv.gz", "input_tokens",
     "output_tokens"),
    ("azure-llm-conv", "azure_llm_2023/conv.csv.gz", "input_tokens", "output_tokens"),
    ("azure-llm-code", "azure_llm_2023/code.csv.gz", "input_tokens", "output_tokens"),
    ("mooncake-conversation", "mooncake/conversation.csv.gz", "input_tokens", "output_tokens"),
]
MAF1 = "azure_functions_2019/sample1350_one_day_minute_of_day.csv.gz"
MAF2_TOTALS = "azure_functions_2021/app_totals.csv"
MAF2_GAPS = "azure_functions_2021/app_iat_stats_77.csv"
CARASERVE = "caraserve_maf/toppings_maf_popularity_512.csv"
GENTD26 = "gentd26_lora/adapter_popularity.csv"
TWO_WEEKS_S = 14 * 86400

# The embedded ShareGPT model; see data/README.md for where each number comes from.
SHAREGPT_MEANS = (222.0, 196.0)  # published: prompt, output of the first two turns, filtered
SHAREGPT_USER_MEAN = 161.3       # published: user turn, before the filter
SHAREGPT_USER_SIGMA = 1.5        # assumed: spread of the logarithm of a user turn
SHAREGPT_CORRELATION = 0.2       # assumed: normal-score correlation of the two turns
# Published: median and 95th percentile of prompts and outputs in BurstGPT's first 400 requests.
BURSTGPT_PROMPT = (353.0, 1638.0)
BURSTGPT_OUTPUT = (238.0, 841.0)
FILTER_MIN, FILTER_PROMPT, FILTER_TOTAL = 4, 1024, 2048


class Data:
    def __init__(self, folder):
        self.folder = folder

    def rows(self, name):
        path = os.path.join(self.folder, name)
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "rt", newline="") as file:
            return list(csv.DictReader(file))

    def sha256(self, name):
        with open(os.path.join(self.folder, name), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()


# ---- lengths -------------------------------------------------------------------------------------

def quantile_table(values):
    values = sorted(values)
    last = len(values) - 1
    table = []
    for q in QUANTILES:
        at = q * last
        low = int(at)
        high = min(low + 1, last)
        table.append(max(1.0, values[low] + (at - low) * (values[high] - values[low])))
    return table


def normal_scores(values):
    """Normal score of each value's mid-rank, so that ties share one score."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    scores = [0.0] * len(values)
    i = 0
    while i < len(order):
        j = i
        while j < len(order) and values[order[j]] == values[order[i]]:
            j += 1
        score = NORMAL.inv_cdf((i + j) / 2 / len(values))
        for k in range(i, j):
            scores[order[k]] = score
        i = j
    return scores


def score_correlation(a, b):
    za, zb = normal_scores(a), normal_scores(b)
    return sum(x * y for x, y in zip(za, zb)) / math.sqrt(
        sum(x * x for x in za) * sum(y * y for y in zb))


def from_table(table, z):
    """The length at normal score z: the logarithm is linear in z between the knots."""
    z = min(max(z, SCORES[0]), SCORES[-1])
    i = 1
    while i < len(SCORES) - 1 and z > SCORES[i]:
        i += 1
    t = (z - SCORES[i - 1]) / (SCORES[i] - SCORES[i - 1])
    return math.exp(math.log(table[i - 1]) * (1 - t) + math.log(table[i]) * t)


def draw_pair(components, rng, z=None):
    """One (prompt, output) of a mixture of (weight, prompts, outputs, correlation)."""
    u = rng.random()
    for weight, prompts, outputs, correlation in components:
        if u < weight:
            break
        u -= weight
    z1, z2 = z if z else (rng.gauss(0, 1), rng.gauss(0, 1))
    z2 = correlation * z1 + math.sqrt(1 - correlation * correlation) * z2
    return (max(1, round(from_table(prompts, z1))), max(1, round(from_table(outputs, z2))))


def passes_filter(pair):
    return (min(pair) >= FILTER_MIN and pair[0] <= FILTER_PROMPT and sum(pair) <= FILTER_TOTAL)


def sharegpt_components(user_first, reply_scale, reply_shape):
    median = SHAREGPT_USER_MEAN / math.exp(SHAREGPT_USER_SIGMA ** 2 / 2)
    user = [max(1.0, median * math.exp(SHAREGPT_USER_SIGMA * z)) for z in SCORES]
    reply = [max(1.0, reply_scale * v) for v in reply_shape]
    return [(user_first, user, reply, SHAREGPT_CORRELATION),
            (1 - user_first, reply, user, SHAREGPT_CORRELATION)]


def sharegpt_means(components):
    rng = random.Random(1)
    pairs = [draw_pair(components, rng) for _ in range(60000)]
    kept = [p for p in pairs if passes_filter(p)]
    return tuple(sum(p[i] for p in kept) / len(kept) for i in (0, 1))


def fit_sharegpt(reply_shape):
    """Solves for the share of pairs that start with a user turn and for the scale of replies."""
    scale, share = 0.8, 0.5
    for _ in range(12):  # the two unknowns are nearly separate: total and difference of the means
        mean = sharegpt_means(sharegpt_components(share, scale, reply_shape))
        scale *= sum(SHAREGPT_MEANS) / sum(mean)
        mean = sharegpt_means(sharegpt_components(share, scale, reply_shape))
        low, high = 0.05, 0.95
        for _ in range(12):
            share = (low + high) / 2
            mean = sharegpt_means(sharegpt_components(share, scale, reply_shape))
            if mean[0] - mean[1] > SHAREGPT_MEANS[0] - SHAREGPT_MEANS[1]:
                low = share
            else:
                high = share
        if abs(sum(mean) - sum(SHAREGPT_MEANS)) < 0.5:
            break
    return sharegpt_components(share, scale, reply_shape)


def log_normal_table(median, p95):
    sigma = math.log(p95 / median) / NORMAL.inv_cdf(0.95)
    return [max(1.0, median * math.exp(sigma * z)) for z in SCORES]


# ---- shares and burstiness -----------------------------------------------------------------------

def share_knots(counts):
    """Lorenz curve from the most popular down: (fraction of items, fraction of calls)."""
    counts = sorted(counts, reverse=True)
    total = sum(counts)
    ranks = sorted({min(len(counts), round(1.12 ** k)) for k in range(120)} | {len(counts)})
    knots, running, done = [], 0, 0
    for rank in ranks:
        running += sum(counts[done:rank])
        done = rank
        knots.append((rank / len(counts), running / total))
        if rank == len(counts):
            break
    return knots


def minute_counts(data):
    rows = data.rows(MAF1)
    return sorted(([int(r[str(m)]) for m in range(1, 1441)] for r in rows), key=lambda c: -sum(c))


def daily_curve(functions):
    """Calls in each hour of the day over the mean hour. A function's weight is capped so that the
    curve is not that of the few busiest ones."""
    hours = [0.0] * 24
    for counts in functions:
        total = sum(counts)
        weight = min(total, 1440) / total
        for h in range(24):
            hours[h] += weight * sum(counts[60 * h:60 * h + 60])
    mean = sum(hours) / 24
    return [h / mean for h in hours]


def excess_variation(functions, daily):
    """Coefficients of variation of the rate between hours and, within an hour, between minutes, in
    excess of a Poisson process; pooled over the functions."""
    hour = [0.0, 0.0]
    minute = [0.0, 0.0]
    for counts in functions:
        total = sum(counts)
        for h in range(24):
            expected = total / 24 * daily[h]
            inside = counts[60 * h:60 * h + 60]
            n = sum(inside)
            hour[0] += (n - expected) ** 2 - expected
            hour[1] += expected ** 2
            if n > 1:
                minute[0] += sum((c - n / 60) ** 2 for c in inside) - n * (1 - 1 / 60)
                minute[1] += n * (n - 1) / 60
    return (math.sqrt(max(0, hour[0] / hour[1])),
            math.sqrt(max(0, minute[0] / max(minute[1], 1))))


def burst_groups(functions, daily):
    """Per group of ranks, up to six kinds of function, each standing for the same number of
    functions of the group, from the steadiest to the most bursty: (rank fraction, CV between hours,
    CV between minutes)."""
    limits = [2, 5, 10, 20, 40, 80, 135, 270, 540, 900, len(functions)]
    groups, start = [], 0
    for limit in limits:
        group = sorted(functions[start:limit], key=lambda f: excess_variation([f], daily))
        kinds = min(6, len(group))
        for k in range(kinds):
            part = group[k * len(group) // kinds:(k + 1) * len(group) // kinds]
            groups.append((limit / len(functions), *excess_variation(part, daily)))
        start = limit
    return groups


def gap_sigma(mean, median):
    """Sigma of the log-normal with this mean and median; 0 where the median is above the mean."""
    median = max(median, 0.0005)  # the table prints three decimals
    return math.sqrt(2 * math.log(mean / median)) if mean > median else 0.0


def app_spans(data):
    """Per app with published gaps, most invoked first: rank fraction, start and span over two
    weeks, largest gap over the span, log-normal sigma of the other gaps. Two or three digits."""
    rows = sorted(data.rows(MAF2_GAPS), key=lambda r: -int(r["requests"]))
    apps = len(data.rows(MAF2_TOTALS))
    spans = []
    for i, row in enumerate(rows):
        span, largest = float(row["span_s"]), float(row["iat_max_s"])
        mean = (span - largest) / max(1, int(row["requests"]) - 2)
        spans.append(((i + 1) / apps, round(float(row["start_s"]) / TWO_WEEKS_S, 3),
                      round(span / TWO_WEEKS_S, 3), round(largest / span, 2),
                      round(gap_sigma(mean, float(row["iat_median_s"])), 1)))
    return spans


# ---- writing -------------------------------------------------------------------------------------

def wrapped(values, indent="     ", digits=5):
    text = ", ".join("%.*g" % (digits, v) for v in values)
    lines, line = [], indent
    for word in text.split(" "):
        if len(line) + len(word) + 1 > 98:
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    lines.append(line.rstrip())
    return "\n".join(lines)


def write_lengths(out, name, origin, rows, components):
    symbol = "k" + "".join(p.capitalize() for p in name.split("-")) + "Lengths"
    out.append("// %s" % origin)
    out.append("constexpr LengthComponent %s[] = {" % symbol)
    for weight, prompts, outputs, correlation in components:
        out.append("    {%.5g, %.5g," % (weight, correlation))
        out.append(wrapped(prompts, "     {").replace("\n     {", "\n      ") + "},")
        out.append(wrapped(outputs, "     {").replace("\n     {", "\n      ") + "}},")
    out.append("};")
    return '    {"%s", %d, %s},' % (name, rows, symbol)


def write_rows(out, kind, symbol, origin, rows):
    out.append("// %s" % origin)
    out.append("constexpr %s %s[] = {" % (kind, symbol))
    line = "   "
    for row in rows:
        cell = " {" + ", ".join("%.5g" % v for v in row) + "},"
        if len(line) + len(cell) > 98:
            out.append(line)
            line = "   "
        line += cell
    out.append(line)
    out.append("};")


def generate(data):
    out = ["// clang-format off",
           "// Written by data/fit_workloads.py; do not edit. Statistics fitted to public traces,",
           "// so that every experiment runs without a download. data/README.md says how well.",
           '#include "engine/workload/embedded_stats.h"', "", "namespace servelab {",
           "namespace {", ""]
    length_rows = []
    for name, file, prompt, output in LENGTH_SETS:
        rows = data.rows(file)
        prompts = [int(r[prompt]) for r in rows]
        outputs = [int(r[output]) for r in rows]
        component = (1, quantile_table(prompts), quantile_table(outputs),
                     score_correlation(prompts, outputs))
        if name == "sharegpt-8k":
            reply_shape = component[2]
        origin = "%s (%s, %s),\n// SHA-256 %s" % (file, prompt, output, data.sha256(file))
        length_rows.append(write_lengths(out, name, origin, len(rows), [component]))
    origin = ("A model, not a fit to rows: two kinds of pairs (user then assistant, assistant then "
              "user);\n// solved for the published means %g and %g. See data/README.md."
              % SHAREGPT_MEANS)
    length_rows.append(write_lengths(out, "sharegpt", origin, 0, fit_sharegpt(reply_shape)))
    origin = ("A model: log-normal with the published medians %g and %g and 95th percentiles %g "
              "and %g;\n// the correlation is unknown and set to 0." % (
                  BURSTGPT_PROMPT[0], BURSTGPT_OUTPUT[0], BURSTGPT_PROMPT[1], BURSTGPT_OUTPUT[1]))
    component = (1, log_normal_table(*BURSTGPT_PROMPT), log_normal_table(*BURSTGPT_OUTPUT), 0)
    length_rows.append(write_lengths(out, "burstgpt", origin, 0, [component]))
    out += ["", "constexpr EmbeddedLengths kLengths[] = {", *length_rows, "};", ""]

    functions = minute_counts(data)
    daily = daily_curve(functions)
    curves = [
        ("maf1", MAF1, [sum(c) for c in functions]),
        ("maf2", MAF2_TOTALS, [int(r["invocations"]) for r in data.rows(MAF2_TOTALS)]),
        ("caraserve", CARASERVE, [float(r["prob"]) for r in data.rows(CARASERVE)]),
        ("gentd26", GENTD26, [int(r["uses"]) for r in data.rows(GENTD26)]),
    ]
    share_rows = []
    for name, file, counts in curves:
        symbol = "k%sShares" % name.capitalize()
        write_rows(out, "ShareKnot", symbol, "%s, SHA-256\n// %s" % (file, data.sha256(file)),
                   share_knots(counts))
        share_rows.append('    {"%s", %d, %.9g, %s},' % (name, len(counts), sum(counts), symbol))
    out += ["", "constexpr EmbeddedShares kShares[] = {", *share_rows, "};", ""]
    out.append("// Calls in each hour of the day over the mean hour, from the same file as maf1.")
    out.append("constexpr double kDaily[24] = {")
    out.append(wrapped(daily, "    ") + "};")
    write_rows(out, "BurstGroup", "kBursts",
               "From the same file as maf1: rank fraction, CV between hours, CV between minutes;\n"
               "// rows with the same rank fraction are equally frequent.",
               burst_groups(functions, daily))
    write_rows(out, "AppSpan", "kSpans",
               "%s, SHA-256\n// %s:\n// rank fraction, start and span over two weeks, largest gap "
               "over span, log-normal sigma." % (MAF2_GAPS, data.sha256(MAF2_GAPS)),
               app_spans(data))
    out += ["", "}  // namespace", "",
            "std::span<const EmbeddedLengths> embedded_lengths() { return kLengths; }",
            "std::span<const EmbeddedShares> embedded_shares() { return kShares; }",
            "std::span<const double, 24> embedded_daily_curve() {",
            "  return std::span<const double, 24>(kDaily);", "}",
            "std::span<const BurstGroup> embedded_bursts() { return kBursts; }",
            "std::span<const AppSpan> embedded_spans() { return kSpans; }", "",
            "}  // namespace servelab", ""]
    return "\n".join(out)


def report(data):
    def line(values):
        values = sorted(values)
        n = len(values)
        return "%.0f / %.0f / %.0f" % (sum(values) / n, values[n // 2], values[int(.9 * n)])

    print("| lengths: mean / p50 / p90 | prompt, real | embedded | output, real | embedded |"
          " correlation, real | embedded |\n|---|---|---|---|---|---|---|")
    for name, file, prompt, output in LENGTH_SETS:
        rows = data.rows(file)
        a = [int(r[prompt]) for r in rows]
        b = [int(r[output]) for r in rows]
        component = [(1, quantile_table(a), quantile_table(b), score_correlation(a, b))]
        if name == "sharegpt-8k":
            shape = component[0][2]
        rng = random.Random(2)
        pairs = [draw_pair(component, rng) for _ in range(40000)]
        c, d = [p[0] for p in pairs], [p[1] for p in pairs]
        print("| %s | %s | %s | %s | %s | %.2f | %.2f |" % (
            name, line(a), line(c), line(b), line(d), statistics.correlation(a, b),
            statistics.correlation(c, d)))
    components = fit_sharegpt(shape)
    rng = random.Random(2)
    pairs = [p for p in (draw_pair(components, rng) for _ in range(80000)) if passes_filter(p)]
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    print("| sharegpt | means only: %g | %s | means only: %g | %s | unknown | %.2f |" % (
        SHAREGPT_MEANS[0], line(a), SHAREGPT_MEANS[1], line(b), statistics.correlation(a, b)))
    print("\nsharegpt: user turn first in %.3f of pairs; kept by the filter: %.3f" % (
        components[0][0], len(pairs) / 80000))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--data", default=os.environ.get("SERVELAB_DATA"))
    parser.add_argument("--out", default=os.path.join(here, "embedded_stats.cc"))
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if not options.data:
        sys.exit("fit_workloads: name the folder with the traces: --data DIR or SERVELAB_DATA")
    data = Data(options.data)
    if options.report:
        report(data)
        return
    text = generate(data)
    with open(options.out, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
