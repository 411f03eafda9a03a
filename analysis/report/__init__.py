"""The report: what the papers claim, what came out here, and every figure, on one page.

    python -m analysis.report           # results/report.html and its twin in Markdown, report.md

    content.py      what the report says: claims with their verdicts, figures with their origin
    origin.py       where a spec's results come from: sources, builds, machines, dates
    pictures.py     figures as data URIs
    rendering.py    the templates beside it, report.html.j2 with report.css, and report.md.j2
    cli.py          the command
"""
