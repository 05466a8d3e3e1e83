"""Files in a folder, by Spark's own writers: whole epochs appear, or nothing."""

from beadline.sinks.files.sink import FileSink

__all__ = ["FileSink"]
