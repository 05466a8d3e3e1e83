"""`beadline demo`: a workload, its job with and without Beadline, and a count of what came out."""
