"""`beadline verify`: faults in a user's own job, and a comparison with a run without faults.

In the order of a run: ``source_range`` fixes what is read, ``scratch`` gives every sink a target of
its own, ``faults`` plans from the seed, ``job`` is the process that gets killed, ``rounds`` and
``inject`` start it and inject faults, ``watch`` reads the sinks meanwhile, ``compare`` judges.
"""
