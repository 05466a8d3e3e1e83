"""The conformance suite: what a sink must prove, for one fixture of wiring.

A sink's test file holds an import and a harness; pytest finds the cases by the import::

    from beadline.testing.suite import *

    class MyHarness(SinkHarness):
        def fresh(self, schema): ...        # a sink on a target that nobody has used
        def visible(self, sink): ...        # what a reader sees, as a list of dictionaries
        def leftovers(self, sink): ...      # names of what prepared parts take up outside
        def unreachable(self, sink): ...    # the target cut off for a while

    @pytest.fixture
    def harness(tmp_path):
        return MyHarness(tmp_path)

No Spark is needed, except for a ``FrameSink``, whose harness has a ``spark``. What a sink's own
``Capabilities`` do not promise is not tested: such a case passes and prints why. Crash points are
the sink's own (``beadline.sink.reach``): a suite that reaches none of them fails.
"""

from __future__ import annotations

import pytest

_CASES = ("visibility", "repeats", "doubt", "losses", "crashes", "durable", "values")
# Before they are imported, so that their failures show the values like those of any test file.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in (*_CASES, "harness", "target"))
)

from beadline.testing.suite.crashes import *  # noqa: E402, F403
from beadline.testing.suite.doubt import *  # noqa: E402, F403
from beadline.testing.suite.durable import *  # noqa: E402, F403
from beadline.testing.suite.harness import Row, SinkHarness, unmounted  # noqa: E402
from beadline.testing.suite.losses import *  # noqa: E402, F403
from beadline.testing.suite.repeats import *  # noqa: E402, F403
from beadline.testing.suite.values import *  # noqa: E402, F403
from beadline.testing.suite.visibility import *  # noqa: E402, F403

CASES = {name: value for name, value in sorted(globals().items()) if name.startswith("test_")}
"""Every case by its name, to run one by hand: ``CASES[name](harness)``."""

# The cases are functions found above, which the linter cannot know.
__all__ = ["Row", "SinkHarness", "unmounted", *CASES]  # noqa: PLE0604
