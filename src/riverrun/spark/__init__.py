"""Spark: where a run grows. The only folder that imports pyspark."""
