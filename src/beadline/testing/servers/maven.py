"""Jars of test servers, fetched once into the cache that `beadline.environment.maven` keeps.

Here a failure to fetch is a server that cannot be had: its tests skip, or fail where CI=true.
"""

from __future__ import annotations

from pathlib import Path

from beadline.environment import maven
from beadline.environment.maven import Bundle
from beadline.errors import JarsUnavailable
from beadline.testing.servers.base import ServerUnavailable


def jars(bundle: Bundle) -> Path:
    """The folder that holds the bundle's jars; fetches them if this is the first time.

    Raises `ServerUnavailable`, with the reason, if they are not in the cache and cannot be fetched.
    """
    try:
        return maven.jars(bundle)
    except JarsUnavailable as error:
        raise ServerUnavailable(str(error)) from error
