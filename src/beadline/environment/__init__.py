"""What a query needs around it: Java, jars, the Spark session."""
