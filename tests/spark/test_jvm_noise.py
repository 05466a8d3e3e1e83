"""What a start prints: nothing that the JDK has to say about Spark's own choices."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from beadline.environment.session import session
spark = session("noise", (), **{"spark.master": "local[1]"})
spark.sparkContext._jvm.java.lang.System.err.print("half a line, ")
spark.sparkContext._jvm.java.lang.System.err.println("and the rest")
spark.stop()
"""


def test_a_session_does_not_print_the_warning_about_incubator_modules() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert "incubator" not in run.stderr
    assert "half a line, and the rest" in run.stderr
