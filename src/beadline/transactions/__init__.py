"""What an operator does with open transactions by hand: list, judge by the log, commit or abort.

``status`` is what the decision log says about them, ``kafka`` what a cluster shows, and ``ending``
ends them. A query does not need this package: it finishes its transactions itself, at its next
start at the latest.
"""
