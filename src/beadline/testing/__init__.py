"""For tests, Beadline's own and its users': real servers, and suites that a sink must pass."""
