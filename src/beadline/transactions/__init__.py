"""What an operator does with open transactions by hand: look, judge by the log, commit or abort.

``status`` is what the decision log says of them, ``kafka`` what a cluster shows, and ``ending``
ends them. A query needs none of it: it finishes its transactions itself, at its next start at the
latest.
"""
