"""Push sources, made replayable: what arrives is in a journal before Spark is offered it."""
