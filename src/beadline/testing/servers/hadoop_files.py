"""The configuration files of Hadoop and its relatives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

_LOGGING = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def write_configuration(
    folder: Path, files: Mapping[str, Mapping[str, str]], quieter: tuple[str, ...]
) -> None:
    """Write the settings of each file, and a log in which some loggers only warn."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in files.items():
        (folder / name).write_text(_xml(settings), encoding="utf-8")
    logging = _LOGGING + "".join(f"log4j.logger.{logger}=WARN\n" for logger in quieter)
    (folder / "log4j.properties").write_text(logging, encoding="utf-8")


def _xml(settings: Mapping[str, str]) -> str:
    properties = "\n".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    return f"<configuration>\n{properties}\n</configuration>\n"
