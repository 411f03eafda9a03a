"""servelab compare: is a technique better than others, on the same requests, beyond noise?

    spec_file    the effective spec: another spec, or options, with other techniques
    running      servelab run on it
    comparing    paired differences to the baseline, judged among all comparisons
    sentences    what that says, in words
    rates        --find-rate: the highest rate within an SLO
    output       the terminal's table, CSV and HTML
"""
