"""Certificates for a server of a test: one authority that signs a broker and a client.

Made for every server, because a key that is shipped is no secret and a certificate that is shipped
expires. Java's own `keytool` makes them, as Java is there wherever the servers are. It does not let
a private key out, though, so a small JVM behind py4j, which comes with PySpark, opens the store and
hands out what Python's clients read: PEM.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beadline.testing.servers.base import ServerUnavailable
from beadline.testing.servers.java import java
from beadline.testing.servers.ports import LOOPBACK
from beadline.testing.servers.process import run_to_end

_STORE = "certificates.p12"
# Of a store that only this module opens; keytool insists on six characters.
_PASSWORD = "certificates"
_SIGNED = {"broker": ("-ext", f"san=ip:{LOOPBACK}"), "client": ()}
_PKCS8 = "java.security.spec.PKCS8EncodedKeySpec"


@dataclass(frozen=True)
class Certificates:
    """Files of PEM in one folder; no key has a password."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority that both sides trust."""
        return self.folder / "ca.pem"

    @property
    def broker(self) -> Path:
        """The server's key and chain in one file, which is how Java's PEM store wants them."""
        return self.folder / "broker.pem"

    @property
    def client(self) -> Path:
        """The client's chain; its name is CN=client."""
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        """The client's private key."""
        return self.folder / "client.key"


def certificates(folder: Path) -> Certificates:
    """Those in the folder; made first if there are none."""
    made = Certificates(folder)
    if made.client_key.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STORE).unlink(missing_ok=True)
    _generate(folder, "ca", "-ext", "bc:c")
    for alias, extensions in _SIGNED.items():
        _generate(folder, alias, "-signer", "ca", *extensions)
    with _opened(folder / _STORE) as (jvm, store, password):
        made.ca.write_text(_chain(store, "ca"))
        made.broker.write_text(_key(jvm, store, password, "broker") + _chain(store, "broker"))
        made.client.write_text(_chain(store, "client"))
        made.client_key.write_text(_key(jvm, store, password, "client"))
    return made


def _generate(folder: Path, alias: str, *more: str) -> None:
    """A key in the store, with a certificate that is signed by itself or by `-signer`."""
    keytool = Path(java()).resolve().with_name("keytool")
    if not keytool.exists():
        raise ServerUnavailable(f"there is no keytool next to {java()}: certificates need it")
    command = [str(keytool), "-genkeypair", "-keystore", _STORE, "-storetype", "PKCS12"]
    command += ["-storepass", _PASSWORD, "-keyalg", "EC", "-groupname", "secp256r1"]
    command += ["-validity", "30", "-alias", alias, "-dname", f"CN={alias}", *more]
    run_to_end(f"keytool-{alias}", command, folder)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """A JVM, the store in it, and the store's password as Java wants it."""
    from py4j.java_gateway import JavaGateway

    gateway = JavaGateway.launch_gateway(java_path=java(), die_on_exit=True, enable_auth=True)
    try:
        jvm = gateway.jvm
        password = gateway.new_array(jvm.char, len(_PASSWORD))
        for index, letter in enumerate(_PASSWORD):
            password[index] = letter
        store = jvm.java.security.KeyStore.getInstance(jvm.java.io.File(str(path)), password)
        yield jvm, store, password
    finally:
        gateway.shutdown()
        gateway.java_process.stdin.close()  # which is what that JVM waits for
        gateway.java_process.wait()


def _key(jvm: Any, store: Any, password: Any, alias: str) -> str:
    key = store.getKey(alias, password)
    # By the factory: the key's own class is not accessible in Java.
    factory = jvm.java.security.KeyFactory.getInstance("EC")
    encoded = factory.getKeySpec(key, jvm.java.lang.Class.forName(_PKCS8)).getEncoded()
    return _pem("PRIVATE KEY", [encoded])


def _chain(store: Any, alias: str) -> str:
    chain = store.getCertificateChain(alias)
    return _pem("CERTIFICATE", (certificate.getEncoded() for certificate in chain))


def _pem(kind: str, encoded: Iterable[bytes]) -> str:
    return "".join(
        f"-----BEGIN {kind}-----\n{_lines(each)}\n-----END {kind}-----\n" for each in encoded
    )


def _lines(encoded: bytes) -> str:
    return "\n".join(textwrap.wrap(base64.b64encode(encoded).decode("ascii"), 64))
