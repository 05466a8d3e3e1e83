"""Everything around a query: the Spark session, its Java and jars, extras, job files."""
