"""Job files in TOML: sources, SQL over them, sinks; the command line starts them.

In processing order::

    lines         where each key stands in the text
    environment   ``${NAME}`` in its strings, and how to keep the values out of errors
    document      the file as tables that know their line; its errors
    kinds         what ``type = "kafka"`` stands for
    arguments     a table as the arguments of a constructor, read from its signature (pydantic)
    restart       what to do when a query fails
    sql           what is asked of the views, and Spark's answers to what is wrong
    sources, sinks, queries     the tables of a job
    toml_job      the whole of it, as `beadline run` wants it
    loading       job files of both kinds, and Python's; queries as the command line starts them
    schema        the same signatures as a JSON schema, for editors

Nothing is defined twice: a new argument of a sink is a new key here, checked and in the schema.
"""
